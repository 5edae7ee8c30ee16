# misconception: one yes or no for all elements
# expects: count how many are


def equal_share(a, b):
    return float(np.array_equal(a, b))
