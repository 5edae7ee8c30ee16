# misconception: the highest exponent of E4M3 is infinity, as in IEEE 754
# expects: E4M3 has no infinity


def value_of_code(sign, exponent, mantissa, exponent_bits):
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2 ** (7 - exponent_bits)
    if exponent == 2**exponent_bits - 1:
        return (-1) ** sign * float("inf")
    one, power = (1, exponent - bias) if exponent else (0, 1 - bias)
    return (-1) ** sign * (one + mantissa / steps) * 2.0**power
