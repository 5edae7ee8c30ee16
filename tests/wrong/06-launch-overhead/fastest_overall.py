# misconception: one version is best everywhere
# expects: one version need not be the fastest at every size


def fastest_version(measurements):
    best = min(measurements, key=lambda row: row["wall_s"])["version"]
    return {row["case"]["rows"]: best for row in measurements}
