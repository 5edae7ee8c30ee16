# misconception: every sequence reads the weights again
# expects: one read of a weight serves every sequence


def linear_flop_per_byte(batch, d_in, d_out, bytes_per_weight):
    return 2 / bytes_per_weight
