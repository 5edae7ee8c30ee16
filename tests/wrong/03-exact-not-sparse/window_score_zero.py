# misconception: a hidden key has score 0
# expects: a score of 0 still has weight exp(0) = 1


def window_attention(Q, K, V, radius):
    S = Q @ K.T * Q.shape[1] ** -0.5
    place = np.arange(len(Q))
    S = np.where(abs(place[:, None] - place) <= radius, S, 0)
    P = np.exp(S - S.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True) @ V
