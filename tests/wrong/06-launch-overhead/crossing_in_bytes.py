# misconception: bytes taken for rows
# expects: divide by the bytes of a row


def crossing_rows(kernels, passes, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    return kernels * seconds_per_launch * bytes_per_s
