# misconception: divided by n
# expects: you divided by n


def rotate_both(Q, K, rng):
    n = Q.shape[1]
    signs = rng.choice([-1, 1], size=n)
    return Q * signs @ ex.hadamard(n) / n, K * signs @ ex.hadamard(n) / n
