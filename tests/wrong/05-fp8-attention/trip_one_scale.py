# misconception: one scale for the whole matrix
# expects: one scale for the whole matrix


def round_trip(x, rows_per_scale):
    scale = np.abs(x).max() / 448
    return ex.e4m3(x / scale) * scale
