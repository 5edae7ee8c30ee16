# misconception: the answer as text
# expects: one plain number, not a str


def ridge_flop_per_byte(peak_flop_per_s, bytes_per_s):
    return f"{peak_flop_per_s / bytes_per_s} FLOP/byte"
