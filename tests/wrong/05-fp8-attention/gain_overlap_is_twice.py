# misconception: whatever overlaps is hidden
# expects: that may be the exponentials


def fp8_gain(head_dim, mma_flop_per_clock, exp_per_clock):
    mma, exp = 4 * head_dim / mma_flop_per_clock, 1 / exp_per_clock
    return (mma + exp) / (mma / 2 + exp), 2
