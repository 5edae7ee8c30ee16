# misconception: the scale for another E4M3
# expects: E4M3 reaches 448


def round_trip(x, rows_per_scale):
    groups = x.reshape(-1, rows_per_scale, x.shape[1])
    scale = np.abs(groups).max(axis=(1, 2), keepdims=True) / 240
    return (ex.e4m3(groups / scale) * scale).reshape(x.shape)
