# misconception: the arguments renamed
# expects: your function must take (batch, bytes_per_weight)


def decode_linear_flop_per_byte(b):
    return b
