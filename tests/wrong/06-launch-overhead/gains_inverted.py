# misconception: the ratio turned over
# expects: a speed-up is the time of eager over that of the version


def gains_over_eager(measurements, version):
    times = {(row["version"], row["case"]["rows"]): row["wall_s"] for row in measurements}
    pairs = {rows: (times["eager", rows], times[version, rows]) for _, rows in times}
    return {rows: (other / eager, eager - other) for rows, (eager, other) in pairs.items()}
