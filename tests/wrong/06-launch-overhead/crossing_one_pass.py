# misconception: the input is read once
# expects: the number of passes is missing


def crossing_rows(kernels, passes, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    return kernels * seconds_per_launch * bytes_per_s / (columns * bytes_per_element)
