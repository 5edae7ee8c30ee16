# misconception: GPU time taken for the wall clock
# expects: that is the GPU time


def fastest_version(measurements):
    best = {}
    for row in measurements:
        size = row["case"]["rows"]
        if size not in best or row["time_s"] < best[size]["time_s"]:
            best[size] = row
    return {size: row["version"] for size, row in best.items()}
