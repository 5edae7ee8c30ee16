# misconception: the maximum is only carried along
# expects: exp overflows for large scores


def update(maximum, total, scores):
    with np.errstate(over="ignore"):
        return max(maximum, scores.max()), total + np.exp(scores).sum()
