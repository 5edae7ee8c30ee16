# misconception: smaller weights need a larger batch
# expects: smaller weights reach the ridge at a smaller batch


def crossing_batch(peak_flop_per_s, bytes_per_s, bits_per_weight):
    return peak_flop_per_s / bytes_per_s * 16 / bits_per_weight
