# misconception: the scale is part of the product here too
# expects: which makes five


def five_kernels():
    return [
        {"reads": ["Q", "K"], "writes": ["S"]},
        {"reads": ["S"], "writes": ["S_masked"]},
        {"reads": ["S_masked"], "writes": ["P"]},
        {"reads": ["P", "V"], "writes": ["O"]},
    ]
