# misconception: E5M2 taken for E4M3
# expects: that is E4M3 for every format


def spacing(value, exponent_bits):
    return 2.0 ** (max(np.floor(np.log2(value)), -6) - 3)
