# misconception: floating-point numbers never lose bits
# expects: does lose bits


def coarser_by(value, largest, outlier):
    return 1.0
