# misconception: launches and traffic take turns
# expects: the bound is the larger time, not the sum


def chain_time_s(kernels, seconds_per_launch, moved_bytes, bytes_per_s):
    return kernels * seconds_per_launch + moved_bytes / bytes_per_s
