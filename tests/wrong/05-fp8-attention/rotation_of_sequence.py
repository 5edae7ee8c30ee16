# misconception: tokens are mixed, not the head dimension
# expects: rotated along the sequence


def rotate_both(Q, K, rng):
    L = len(Q)
    signs = rng.choice([-1, 1], size=(L, 1))
    H = ex.hadamard(L) / np.sqrt(L)
    return H @ (signs * Q), H @ (signs * K)
