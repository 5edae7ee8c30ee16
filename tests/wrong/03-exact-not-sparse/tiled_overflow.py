# misconception: no maximum is subtracted
# expects: the exponential overflows: subtract the running maximum first


def tiled_attention(Q, K, V, tile):
    total, output = np.float32(0), np.zeros_like(Q)
    with np.errstate(all="ignore"):
        for start in range(0, len(K), tile):
            P = np.exp(Q @ K[start : start + tile].T * Q.shape[1] ** -0.5)
            total = total + P.sum(axis=1, keepdims=True)
            output = output + P @ V[start : start + tile]
        return output / total
