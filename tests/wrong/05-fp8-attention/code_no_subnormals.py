# misconception: a stored exponent of 0 is an exponent like any other
# expects: the number is subnormal


def value_of_code(sign, exponent, mantissa, exponent_bits):
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2 ** (7 - exponent_bits)
    return (-1) ** sign * (1 + mantissa / steps) * 2.0 ** (exponent - bias)
