# misconception: elements counted as bytes
# expects: you counted elements, not bytes


def crossing_rows(kernels, passes, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    return kernels * seconds_per_launch * bytes_per_s / (passes * columns)
