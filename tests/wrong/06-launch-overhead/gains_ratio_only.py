# misconception: only the ratio matters
# expects: the seconds are missing


def gains_over_eager(measurements, version):
    times = {(row["version"], row["case"]["rows"]): row["wall_s"] for row in measurements}
    pairs = {rows: (times["eager", rows], times[version, rows]) for _, rows in times}
    return {rows: eager / other for rows, (eager, other) in pairs.items()}
