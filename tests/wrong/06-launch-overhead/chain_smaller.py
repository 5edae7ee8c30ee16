# misconception: the faster of the two decides
# expects: both have to be over


def chain_time_s(kernels, seconds_per_launch, moved_bytes, bytes_per_s):
    return min(kernels * seconds_per_launch, moved_bytes / bytes_per_s)
