# misconception: the weights need not add up to 1
# expects: divide each row by the sum of its weights


def linear_attention(Q, K, V):
    Q, K = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (Q, K))
    return Q @ (K.T @ V)
