# misconception: signs of 0 and 1
# expects: signs are +1 or -1


def rotate_both(Q, K, rng):
    n = Q.shape[1]
    signs = rng.integers(0, 2, size=n)
    H = ex.hadamard(n) / np.sqrt(n)
    return Q * signs @ H, K * signs @ H
