# misconception: the highest exponent is never a number
# expects: 240 is the largest of an E4M3 that has infinity


def largest_number(exponent_bits, has_infinity):
    return (2 - 2.0 ** (exponent_bits - 7)) * 2.0 ** (2 ** (exponent_bits - 1) - 1)
