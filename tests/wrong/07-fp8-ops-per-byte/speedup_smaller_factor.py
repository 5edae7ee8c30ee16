# misconception: the smaller of the two factors is the speed-up
# expects: the smaller factor is not always what is left


def speedup_of_bound(flop, moved_bytes, peak_flop_per_s, bytes_per_s, peak_factor, byte_factor):
    return min(peak_factor, byte_factor)
