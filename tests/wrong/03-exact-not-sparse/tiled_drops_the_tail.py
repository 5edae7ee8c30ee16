# misconception: L is taken to be a multiple of the tile
# expects: the last tile is missing where the tile does not divide L


def tiled_attention(Q, K, V, tile):
    maximum = np.full((len(Q), 1), -np.inf, dtype=np.float32)
    total, output = np.float32(0), np.zeros_like(Q)
    for start in range(0, len(K) // tile * tile, tile):
        S = Q @ K[start : start + tile].T * Q.shape[1] ** -0.5
        new = np.maximum(maximum, S.max(axis=1, keepdims=True))
        P, shrink = np.exp(S - new), np.exp(maximum - new)
        total = total * shrink + P.sum(axis=1, keepdims=True)
        output = output * shrink + P @ V[start : start + tile]
        maximum = new
    return output / total if len(K) >= tile else output
