# misconception: the bias of the variant fnuz
# expects: 7 in E4M3, not 8


def value_of_code(sign, exponent, mantissa, exponent_bits):
    bias, steps = 2 ** (exponent_bits - 1), 2 ** (7 - exponent_bits)
    one, power = (1, exponent - bias) if exponent else (0, 1 - bias)
    return (-1) ** sign * (one + mantissa / steps) * 2.0**power
