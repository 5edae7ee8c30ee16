# misconception: the same signs for every generator
# expects: draw the signs from rng


def rotate_both(Q, K, rng):
    n = Q.shape[1]
    signs = np.random.default_rng(0).choice([-1, 1], size=n)
    H = ex.hadamard(n) / np.sqrt(n)
    return Q * signs @ H, K * signs @ H
