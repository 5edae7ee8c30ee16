# misconception: nothing is rescaled
# expects: neither the sum nor the output so far


def tiled_attention(Q, K, V, tile):
    maximum = np.full((len(Q), 1), -np.inf, dtype=np.float32)
    total, output = np.float32(0), np.zeros_like(Q)
    for start in range(0, len(K), tile):
        S = Q @ K[start : start + tile].T * Q.shape[1] ** -0.5
        new = np.maximum(maximum, S.max(axis=1, keepdims=True))
        P = np.exp(S - new)
        total = total + P.sum(axis=1, keepdims=True)
        output = output + P @ V[start : start + tile]
        maximum = new
    return output / total
