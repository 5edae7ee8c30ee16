# misconception: no return statement
# expects: your function returned None; end it with a return statement


def crossing_batch(peak_flop_per_s, bytes_per_s, bytes_per_weight):
    peak_flop_per_s / bytes_per_s * bytes_per_weight / 2
