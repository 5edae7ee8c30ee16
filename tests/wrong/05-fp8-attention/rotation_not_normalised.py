# misconception: the Hadamard matrix is taken as it is
# expects: 1 / sqrt(n) is missing


def rotate_both(Q, K, rng):
    n = Q.shape[1]
    signs = rng.choice([-1, 1], size=n)
    return Q * signs @ ex.hadamard(n), K * signs @ ex.hadamard(n)
