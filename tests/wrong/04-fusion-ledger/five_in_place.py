# misconception: the mask is applied where the scores are
# expects: kernel 2 writes S, which is there already


def five_kernels():
    return [
        {"reads": ["Q", "K"], "writes": ["S"]},
        {"reads": ["S"], "writes": ["S"]},
        {"reads": ["S"], "writes": ["S"]},
        {"reads": ["S"], "writes": ["P"]},
        {"reads": ["P", "V"], "writes": ["O"]},
    ]
