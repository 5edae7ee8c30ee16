# misconception: the fewest kernels are fastest
# expects: that has the fewest launches


def fastest_version(measurements):
    best = {}
    for row in measurements:
        size = row["case"]["rows"]
        if size not in best or row["launches"] < best[size]["launches"]:
            best[size] = row
    return {size: row["version"] for size, row in best.items()}
