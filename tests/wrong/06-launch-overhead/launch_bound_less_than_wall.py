# misconception: any time beyond the GPU time counts
# expects: less than 0.8 of the wall time


def launch_bound_sizes(measurements, version):
    return sorted(
        row["case"]["rows"] for row in measurements if row["version"] == version and row["time_s"] < row["wall_s"]
    )
