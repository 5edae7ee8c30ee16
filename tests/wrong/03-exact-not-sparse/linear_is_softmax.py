# misconception: linear attention is softmax attention made fast
# expects: that is softmax attention


def linear_attention(Q, K, V):
    return tiled_attention(Q, K, V, 64)
