# misconception: the version ignored
# expects: use the rows of the one version only


def launch_bound_sizes(measurements, version):
    return sorted(row["case"]["rows"] for row in measurements if row["time_s"] < 0.8 * row["wall_s"])
