# misconception: negative errors do not count
# expects: take absolute values before the maximum


def largest_error(got, exact):
    return (got - exact).max() / np.abs(exact).max()
