# misconception: FLOP per weight instead of per byte
# expects: you counted elements, not bytes


def linear_flop_per_byte(batch, d_in, d_out, bytes_per_weight):
    return 2 * batch
