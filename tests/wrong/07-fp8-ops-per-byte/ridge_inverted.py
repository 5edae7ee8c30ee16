# misconception: bytes per FLOP
# expects: the wrong way round


def ridge_flop_per_byte(peak_flop_per_s, bytes_per_s):
    return bytes_per_s / peak_flop_per_s
