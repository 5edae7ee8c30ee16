# misconception: not a number
# expects: must be finite


def ridge_flop_per_byte(peak_flop_per_s, bytes_per_s):
    return float("nan")
