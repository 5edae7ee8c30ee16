# misconception: the peak doubles, so the speed does
# expects: the exponentials do not get faster


def fp8_gain(head_dim, mma_flop_per_clock, exp_per_clock):
    return 2, 2
