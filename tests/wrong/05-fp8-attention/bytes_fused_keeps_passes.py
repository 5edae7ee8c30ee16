# misconception: fusing saves launches only
# expects: a fused kernel keeps scores and weights on the chip


def attention_bytes(L, heads, head_dim, bits, score_bits, fused):
    return 4 * heads * L * (head_dim * bits + L * score_bits) / 8
