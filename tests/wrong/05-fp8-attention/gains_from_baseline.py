# misconception: steps are added to the baseline
# expects: take one step away from the full scheme


def gains_of_steps(errors):
    base = errors["FP8 baseline"]
    return base / errors["FP8 without block scales"], base / errors["FP8 without rotation"]
