# misconception: the number of another E4M3, typed
# expects: 240 is the largest of an E4M3 that has infinity


def largest_number(exponent_bits, has_infinity):
    return 240
