# misconception: one matrix product per score
# expects: two products, and a multiply-add is 2 FLOP


def fp8_gain(head_dim, mma_flop_per_clock, exp_per_clock):
    mma, exp = 2 * head_dim / mma_flop_per_clock, 1 / exp_per_clock
    return (mma + exp) / (mma / 2 + exp), max(mma, exp) / max(mma / 2, exp)
