# misconception: a larger unit gives a larger number
# expects: a GiB is the larger unit


def in_gb_and_gib(n_bytes):
    return n_bytes / 1e9, n_bytes / 1e9 * 1.073741824
