# misconception: a single name for all sizes
# expects: return a dict with the sizes as keys


def fastest_version(measurements):
    return "graph"
