# misconception: bits taken for bytes
# expects: a byte has 8 bits


def attention_bytes(L, heads, head_dim, bits, score_bits, fused):
    return 4 * heads * L * (head_dim * bits + (0 if fused else L * score_bits))
