# misconception: compute time and memory time add up
# expects: take the larger time, not the sum


def time_bound_s(L, heads, head_dim, bits, score_bits, fused, peak_flop_per_s, bytes_per_s):
    moved = attention_bytes(L, heads, head_dim, bits, score_bits, fused)
    return 4 * heads * L**2 * head_dim / peak_flop_per_s + moved / bytes_per_s
