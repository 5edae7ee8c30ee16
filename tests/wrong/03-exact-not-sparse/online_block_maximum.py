# misconception: the maximum of the last block is the maximum
# expects: an earlier score may exceed all of this block


def update(maximum, total, scores):
    new = scores.max()
    with np.errstate(over="ignore", invalid="ignore"):
        return new, total * np.exp(maximum - new) + np.exp(scores - new).sum()
