# misconception: compute time and memory time add up
# expects: you added compute time and memory time


def speedup_of_bound(flop, moved_bytes, peak_flop_per_s, bytes_per_s, peak_factor, byte_factor):
    compute_s, memory_s = flop / peak_flop_per_s, moved_bytes / bytes_per_s
    return (compute_s + memory_s) / (compute_s / peak_factor + memory_s / byte_factor)
