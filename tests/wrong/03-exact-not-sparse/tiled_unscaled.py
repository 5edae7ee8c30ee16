# misconception: the scores are not scaled
# expects: scaled by 1 / sqrt(head_dim)


def tiled_attention(Q, K, V, tile):
    maximum = np.full((len(Q), 1), -np.inf, dtype=np.float32)
    total, output = np.float32(0), np.zeros_like(Q)
    for start in range(0, len(K), tile):
        S = Q @ K[start : start + tile].T
        new = np.maximum(maximum, S.max(axis=1, keepdims=True))
        P, shrink = np.exp(S - new), np.exp(maximum - new)
        total = total * shrink + P.sum(axis=1, keepdims=True)
        output = output * shrink + P @ V[start : start + tile]
        maximum = new
    return output / total
