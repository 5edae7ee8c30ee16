# misconception: random signs without the Hadamard matrix
# expects: multiply by H


def rotate_both(Q, K, rng):
    signs = rng.choice([-1, 1], size=Q.shape[1])
    return Q * signs, K * signs
