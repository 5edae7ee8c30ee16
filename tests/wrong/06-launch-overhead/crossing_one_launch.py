# misconception: one launch for all kernels
# expects: all kernels are launched, not one


def crossing_rows(kernels, passes, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    return seconds_per_launch * bytes_per_s / (passes * columns * bytes_per_element)
