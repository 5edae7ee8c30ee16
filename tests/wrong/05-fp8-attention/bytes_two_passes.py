# misconception: scores and weights are written, and not read again
# expects: four passes; you counted two


def attention_bytes(L, heads, head_dim, bits, score_bits, fused):
    passes = 0 if fused else 2 * L * score_bits
    return heads * L * (4 * head_dim * bits + passes) / 8
