# misconception: the residual is not read again
# expects: there are 3 passes after


def predicted_speedup(rows, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    machine = {"seconds_per_launch": seconds_per_launch, "bytes_per_s": bytes_per_s}
    tensor = rows * columns * bytes_per_element
    return chain_time_s(3, moved_bytes=7 * tensor, **machine) / chain_time_s(1, moved_bytes=2 * tensor, **machine)
