# misconception: FP8 halves the FLOP
# expects: not half of them


def time_bound_s(L, heads, head_dim, bits, score_bits, fused, peak_flop_per_s, bytes_per_s):
    moved = attention_bytes(L, heads, head_dim, bits, score_bits, fused)
    flop = 4 * heads * L**2 * head_dim * bits / 16
    return max(flop / peak_flop_per_s, moved / bytes_per_s)
