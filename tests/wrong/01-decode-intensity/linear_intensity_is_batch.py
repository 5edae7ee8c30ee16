# misconception: B, which holds for 16-bit weights
# expects: that holds for 2 bytes per weight only


def linear_flop_per_byte(batch, d_in, d_out, bytes_per_weight):
    return batch
