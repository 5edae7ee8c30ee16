# misconception: GB and GiB are the same
# expects: 1 GiB is 2^30 bytes


def in_gb_and_gib(n_bytes):
    return n_bytes / 1e9, n_bytes / 1e9
