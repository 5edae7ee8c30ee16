# misconception: equal within a tolerance is equal
# expects: a tolerance hides the difference


def equal_share(a, b):
    return np.isclose(a, b).mean()
