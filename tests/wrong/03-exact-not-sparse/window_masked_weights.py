# misconception: hidden keys are removed after the softmax
# expects: hide the keys before the softmax


def window_attention(Q, K, V, radius):
    S = Q @ K.T * Q.shape[1] ** -0.5
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    place = np.arange(len(Q))
    return np.where(abs(place[:, None] - place) <= radius, P, 0) @ V
