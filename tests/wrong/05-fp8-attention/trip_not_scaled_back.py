# misconception: the codes are taken for the numbers
# expects: multiply by the scale again


def round_trip(x, rows_per_scale):
    groups = x.reshape(-1, rows_per_scale, x.shape[1])
    scale = np.abs(groups).max(axis=(1, 2), keepdims=True) / 448
    return ex.e4m3(groups / scale).reshape(x.shape)
