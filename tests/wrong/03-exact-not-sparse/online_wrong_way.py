# misconception: the rescaling factor is turned over
# expects: you rescaled the wrong way


def update(maximum, total, scores):
    new = max(maximum, scores.max())
    with np.errstate(over="ignore", invalid="ignore"):
        return new, total * np.exp(new - maximum) + np.exp(scores - new).sum()
