# misconception: the first kernel reads everything
# expects: kernel 1 need not read all of K, Q, V


def three_kernels():
    return [
        {"reads": ["Q", "K", "V"], "writes": ["S"]},
        {"reads": ["S"], "writes": ["P"]},
        {"reads": ["P", "V"], "writes": ["O"]},
    ]
