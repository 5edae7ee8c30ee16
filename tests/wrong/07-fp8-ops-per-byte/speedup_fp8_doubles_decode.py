# misconception: twice the matrix rate is twice the speed, for decode as for prefill
# expects: a faster peak helps only what is compute-bound


def speedup_of_bound(flop, moved_bytes, peak_flop_per_s, bytes_per_s, peak_factor, byte_factor):
    return peak_factor
