# misconception: recomputing costs nothing
# expects: it must multiply Q and K^T again


def backward_flop(method, L, head_dim):
    return 8 * L**2 * head_dim
