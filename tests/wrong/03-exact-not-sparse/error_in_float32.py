# misconception: the exact result rounded to float32
# expects: you rounded the exact result to float32


def largest_error(got, exact):
    return np.abs(got - np.float32(exact)).max() / np.abs(exact).max()
