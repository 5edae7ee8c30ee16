# misconception: the crossing batch is the ridge, whatever the weights take
# expects: that is the ridge


def crossing_batch(peak_flop_per_s, bytes_per_s, bytes_per_weight):
    return peak_flop_per_s / bytes_per_s
