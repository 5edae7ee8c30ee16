# misconception: the code with all bits set is a number
# expects: still NaN


def largest_number(exponent_bits, has_infinity):
    highest = 2**exponent_bits - (2 if has_infinity else 1)
    return (2 - 2.0 ** (exponent_bits - 7)) * 2.0 ** (highest - (2 ** (exponent_bits - 1) - 1))
