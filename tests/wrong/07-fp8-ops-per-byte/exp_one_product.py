# misconception: only one of the two matrix products is counted
# expects: a factor 2 is missing in the MMA


def exp_to_mma_time_ratio(head_dim, mma_flop_per_clock, exp_per_clock):
    return (1 / exp_per_clock) / (2 * head_dim / mma_flop_per_clock)
