# misconception: the roof that binds before also binds after
# expects: the other roof caps the gain


def speedup_of_bound(flop, moved_bytes, peak_flop_per_s, bytes_per_s, peak_factor, byte_factor):
    compute_bound = flop / peak_flop_per_s > moved_bytes / bytes_per_s
    return peak_factor if compute_bound else byte_factor
