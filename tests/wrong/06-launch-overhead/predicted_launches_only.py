# misconception: fusion saves launches only
# expects: fusion saves bytes too


def predicted_speedup(rows, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    machine = {"seconds_per_launch": seconds_per_launch, "bytes_per_s": bytes_per_s}
    moved = 7 * rows * columns * bytes_per_element
    return chain_time_s(3, moved_bytes=moved, **machine) / chain_time_s(1, moved_bytes=moved, **machine)
