# misconception: the lengths of q and k multiplied
# expects: the error of k[i] meets q[i] only


def score_error(q, k, relative_error):
    return relative_error * np.linalg.norm(q) * np.linalg.norm(k)
