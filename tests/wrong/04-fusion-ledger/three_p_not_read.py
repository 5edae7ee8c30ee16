# misconception: the probabilities do not pass through memory
# expects: P is written, and no kernel reads it


def three_kernels():
    return [
        {"reads": ["Q", "K"], "writes": ["S"]},
        {"reads": ["S"], "writes": ["P"]},
        {"reads": ["V"], "writes": ["O"]},
    ]
