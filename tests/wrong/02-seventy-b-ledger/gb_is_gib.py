# misconception: GB of 2^30 bytes
# expects: 1 GB is 10^9 bytes


def in_gb_and_gib(n_bytes):
    return n_bytes / 2**30, n_bytes / 2**30
