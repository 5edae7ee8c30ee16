# misconception: the plain version is taken to be exact
# expects: float32 is not so exact


def compare_bits():
    return {"plain equals tiled": 0.07, "tile 64 equals tile 128": 0.1, "plain": 0.0, "tiled": 3e-7}
