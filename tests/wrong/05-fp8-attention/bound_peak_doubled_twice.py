# misconception: the FP8 peak is doubled once more
# expects: the peak is given for the format already


def time_bound_s(L, heads, head_dim, bits, score_bits, fused, peak_flop_per_s, bytes_per_s):
    moved = attention_bytes(L, heads, head_dim, bits, score_bits, fused)
    flop = 4 * heads * L**2 * head_dim
    return max(flop / (peak_flop_per_s * 16 / bits), moved / bytes_per_s)
