# misconception: both factors come together
# expects: the two factors do not multiply


def predicted_speedup(rows, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    return 3 * 7 / 3
