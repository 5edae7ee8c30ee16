# misconception: the sum first
# expects: return the maximum first, then the sum


def update(maximum, total, scores):
    new = max(maximum, scores.max())
    return total * np.exp(maximum - new) + np.exp(scores - new).sum(), new
