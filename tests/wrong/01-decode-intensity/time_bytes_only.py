# misconception: decode is always bandwidth-bound
# expects: the FLOP are missing


def time_bound_s(parts, peak_flop_per_s, bytes_per_s):
    return sum(moved for _, moved in parts) / bytes_per_s
