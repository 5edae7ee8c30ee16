# misconception: only the shares
# expects: return a dict with the keys


def compare_bits():
    return {"plain equals tiled": 0.07, "tile 64 equals tile 128": 0.1}
