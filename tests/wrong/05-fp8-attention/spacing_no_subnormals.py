# misconception: the spacing shrinks without end
# expects: below the smallest normal number the spacing shrinks no more


def spacing(value, exponent_bits):
    return 2.0 ** (np.floor(np.log2(value)) - (7 - exponent_bits))
