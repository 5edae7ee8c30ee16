# misconception: only bytes take time
# expects: the launches are missing


def chain_time_s(kernels, seconds_per_launch, moved_bytes, bytes_per_s):
    return moved_bytes / bytes_per_s
