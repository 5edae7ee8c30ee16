# misconception: fusion saves bytes only
# expects: 7/3 holds for large inputs only


def predicted_speedup(rows, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    return 7 / 3
