# misconception: rate and bytes each give their factor
# expects: the factors do not multiply


def speedup_of_bound(flop, moved_bytes, peak_flop_per_s, bytes_per_s, peak_factor, byte_factor):
    return peak_factor * byte_factor
