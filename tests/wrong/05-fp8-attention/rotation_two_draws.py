# misconception: signs of their own for Q and for K
# expects: draw the signs once


def rotate_both(Q, K, rng):
    n = Q.shape[1]
    Q, K = (x * rng.choice([-1, 1], size=n) @ ex.hadamard(n) / np.sqrt(n) for x in (Q, K))
    return Q, K
