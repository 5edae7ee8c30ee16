# misconception: identical to the bit, because the algorithm is exact
# expects: is a result compared with itself


def compare_bits():
    return {"plain equals tiled": 1.0, "tile 64 equals tile 128": 1.0, "plain": 3e-7, "tiled": 3e-7}
