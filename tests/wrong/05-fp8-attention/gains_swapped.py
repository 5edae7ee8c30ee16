# misconception: without a step taken for with it only
# expects: rotation first, then block scales


def gains_of_steps(errors):
    full = errors["FP8 FlashAttention-3"]
    return errors["FP8 without block scales"] / full, errors["FP8 without rotation"] / full
