# misconception: GPU time taken for the wall clock
# expects: that is the GPU time


def gains_over_eager(measurements, version):
    times = {(row["version"], row["case"]["rows"]): row["time_s"] for row in measurements}
    pairs = {rows: (times["eager", rows], times[version, rows]) for _, rows in times}
    return {rows: (eager / other, eager - other) for rows, (eager, other) in pairs.items()}
