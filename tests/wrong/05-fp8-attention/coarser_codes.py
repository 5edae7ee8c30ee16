# misconception: the spacing of the codes, without the scale
# expects: multiply each by its scale


def coarser_by(value, largest, outlier):
    return spacing(value * 448 / outlier, 4) / spacing(value * 448 / largest, 4)
