# misconception: each tile has a softmax of its own
# expects: took a softmax of each tile and added


def tiled_attention(Q, K, V, tile):
    output = np.zeros_like(Q)
    for start in range(0, len(K), tile):
        S = Q @ K[start : start + tile].T * Q.shape[1] ** -0.5
        P = np.exp(S - S.max(axis=1, keepdims=True))
        output += P / P.sum(axis=1, keepdims=True) @ V[start : start + tile]
    return output
