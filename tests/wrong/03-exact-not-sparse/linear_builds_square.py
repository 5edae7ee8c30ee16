# misconception: bracketed the slow way
# expects: multiply phi(K)^T and V first


def linear_attention(Q, K, V):
    Q, K = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (Q, K))
    weights = Q @ K.T
    return weights / weights.sum(axis=1, keepdims=True) @ V
