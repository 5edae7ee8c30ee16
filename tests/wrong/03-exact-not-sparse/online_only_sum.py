# misconception: the maximum is not returned
# expects: the result must have shape (2,)


def update(maximum, total, scores):
    new = max(maximum, scores.max())
    return total * np.exp(maximum - new) + np.exp(scores - new).sum()
