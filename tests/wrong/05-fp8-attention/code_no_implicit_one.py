# misconception: the implicit 1 is forgotten
# expects: the implicit 1 in front of the mantissa is missing


def value_of_code(sign, exponent, mantissa, exponent_bits):
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2 ** (7 - exponent_bits)
    return (-1) ** sign * mantissa / steps * 2.0 ** (max(exponent, 1) - bias)
