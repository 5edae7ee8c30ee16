# misconception: a stub that returns 0
# expects: the same number for every input


def exp_to_mma_time_ratio(head_dim, mma_flop_per_clock, exp_per_clock):
    return 0
