# misconception: the spacing is a share of the value
# expects: take the power of two below the value


def spacing(value, exponent_bits):
    return value * 2.0 ** (exponent_bits - 7)
