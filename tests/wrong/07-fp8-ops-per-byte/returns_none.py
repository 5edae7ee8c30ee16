# misconception: no return statement
# expects: returned None


def crossing_batch(peak_flop_per_s, bytes_per_s, bytes_per_weight):
    peak_flop_per_s / bytes_per_s * bytes_per_weight / 2
