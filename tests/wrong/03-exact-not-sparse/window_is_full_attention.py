# misconception: a window is only a faster way to the same result
# expects: every key is visible: that is full attention


def window_attention(Q, K, V, radius):
    return tiled_attention(Q, K, V, radius)
