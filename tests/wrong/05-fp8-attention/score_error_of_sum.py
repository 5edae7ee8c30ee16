# misconception: the score has the relative error of its terms
# expects: they do not scale the whole sum


def score_error(q, k, relative_error):
    return relative_error * abs(q @ k)
