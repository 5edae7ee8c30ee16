# misconception: the largest time is best
# expects: that is the slowest version


def fastest_version(measurements):
    best = {}
    for row in measurements:
        size = row["case"]["rows"]
        if size not in best or row["wall_s"] > best[size]["wall_s"]:
            best[size] = row
    return {size: row["version"] for size, row in best.items()}
