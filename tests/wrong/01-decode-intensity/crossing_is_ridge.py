# misconception: the batch equals the ridge
# expects: the batch equals it only for 16 bits per weight


def crossing_batch(peak_flop_per_s, bytes_per_s, bits_per_weight):
    return peak_flop_per_s / bytes_per_s
