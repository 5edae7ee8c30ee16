# misconception: the bound of the totals
# expects: you took the totals first


def time_bound_s(parts, peak_flop_per_s, bytes_per_s):
    flop, moved = (sum(part[place] for part in parts) for place in (0, 1))
    return max(flop / peak_flop_per_s, moved / bytes_per_s)
