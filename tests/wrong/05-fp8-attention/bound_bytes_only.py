# misconception: attention always waits for memory
# expects: the FLOP are missing


def time_bound_s(L, heads, head_dim, bits, score_bits, fused, peak_flop_per_s, bytes_per_s):
    moved = attention_bytes(L, heads, head_dim, bits, score_bits, fused)
    return moved / bytes_per_s
