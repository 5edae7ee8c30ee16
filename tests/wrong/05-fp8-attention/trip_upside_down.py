# misconception: multiplied by the scale first
# expects: divide by the scale before rounding


def round_trip(x, rows_per_scale):
    groups = x.reshape(-1, rows_per_scale, x.shape[1])
    scale = np.abs(groups).max(axis=(1, 2), keepdims=True) / 448
    return (ex.e4m3(groups * scale) / scale).reshape(x.shape)
