# misconception: only the queries are rotated
# expects: K is as before


def rotate_both(Q, K, rng):
    n = Q.shape[1]
    signs = rng.choice([-1, 1], size=n)
    return Q * signs @ ex.hadamard(n) / np.sqrt(n), K
