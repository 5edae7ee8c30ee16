# misconception: one bias and one mantissa for both formats
# expects: that is E4M3 for every code


def value_of_code(sign, exponent, mantissa, exponent_bits):
    one, power = (1, exponent - 7) if exponent else (0, -6)
    return (-1) ** sign * (one + mantissa / 8) * 2.0**power
