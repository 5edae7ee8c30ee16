# misconception: FP8 taken for a uniform grid
# expects: that is a uniform grid, as of INT8


def coarser_by(value, largest, outlier):
    return outlier / largest
