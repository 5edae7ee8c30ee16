# misconception: compute and traffic do not overlap
# expects: take the larger time, not the sum


def time_bound_s(parts, peak_flop_per_s, bytes_per_s):
    return sum(flop / peak_flop_per_s + moved / bytes_per_s for flop, moved in parts)
