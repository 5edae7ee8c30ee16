# misconception: bits taken for bytes
# expects: the bandwidth is in bytes


def crossing_batch(peak_flop_per_s, bytes_per_s, bits_per_weight):
    return peak_flop_per_s / bytes_per_s * bits_per_weight / 2
