# misconception: the result rounded to a whole number
# expects: do not round


def ridge_flop_per_byte(peak_flop_per_s, bytes_per_s):
    return round(peak_flop_per_s / bytes_per_s)
