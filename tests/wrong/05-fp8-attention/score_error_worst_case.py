# misconception: sizes of errors are added
# expects: their squares add up


def score_error(q, k, relative_error):
    return relative_error * np.sum(np.abs(q * k))
