# misconception: the widths added as if the rows were the work
# expects: the two widths multiply


def linear_flop(batch, d_in, d_out):
    return 2 * batch * (d_in + d_out)
