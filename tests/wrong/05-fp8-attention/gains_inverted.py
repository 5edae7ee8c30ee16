# misconception: the error with the step over that without
# expects: a gain is the error without the step over that with it


def gains_of_steps(errors):
    full = errors["FP8 FlashAttention-3"]
    return full / errors["FP8 without rotation"], full / errors["FP8 without block scales"]
