# misconception: FP8 inputs make the scores FP8 too
# expects: scores and weights have score_bits


def attention_bytes(L, heads, head_dim, bits, score_bits, fused):
    return 4 * heads * L * (head_dim + (0 if fused else L)) * bits / 8
