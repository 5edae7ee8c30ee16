# misconception: the signs come after the Hadamard matrix
# expects: random signs must come before H


def rotate_both(Q, K, rng):
    n = Q.shape[1]
    signs = rng.choice([-1, 1], size=n)
    H = ex.hadamard(n) / np.sqrt(n)
    return Q @ H * signs, K @ H * signs
