# misconception: a busy GPU taken for a waiting one
# expects: those are the sizes at which the GPU is busy


def launch_bound_sizes(measurements, version):
    return sorted(
        row["case"]["rows"]
        for row in measurements
        if row["version"] == version and row["time_s"] >= 0.8 * row["wall_s"]
    )
