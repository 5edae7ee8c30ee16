# misconception: the sign bit is not used
# expects: the sign is missing


def value_of_code(sign, exponent, mantissa, exponent_bits):
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2 ** (7 - exponent_bits)
    one, power = (1, exponent - bias) if exponent else (0, 1 - bias)
    return (one + mantissa / steps) * 2.0**power
