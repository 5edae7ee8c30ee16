# misconception: a chain is launched once
# expects: every kernel is launched


def chain_time_s(kernels, seconds_per_launch, moved_bytes, bytes_per_s):
    return max(seconds_per_launch, moved_bytes / bytes_per_s)
