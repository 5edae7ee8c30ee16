# misconception: FP8 makes everything faster, exponentials included
# expects: the exponential does not get faster


def speedup_without_overlap(exp_to_mma_ratio, mma_factor):
    return mma_factor
