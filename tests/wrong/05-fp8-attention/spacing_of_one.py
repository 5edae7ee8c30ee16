# misconception: the spacing at 1, everywhere
# expects: it doubles with each power of two


def spacing(value, exponent_bits):
    return 2.0 ** -(7 - exponent_bits)
