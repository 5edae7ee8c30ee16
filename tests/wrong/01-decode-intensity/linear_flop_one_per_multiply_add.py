# misconception: a multiply-add counted as 1 FLOP
# expects: a multiply-add is 2 FLOP


def linear_flop(batch, d_in, d_out):
    return batch * d_in * d_out
