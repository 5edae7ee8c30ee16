# misconception: the FLOP of one vector
# expects: the batch is missing


def linear_flop(batch, d_in, d_out):
    return 2 * d_in * d_out
