# misconception: the sum so far is kept as it is
# expects: rescale it when the maximum grows


def update(maximum, total, scores):
    new = max(maximum, scores.max())
    return new, total + np.exp(scores - new).sum()
