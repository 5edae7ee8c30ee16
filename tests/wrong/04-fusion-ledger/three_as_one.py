# misconception: all in one kernel
# expects: there are three kernels


def three_kernels():
    return [
        {"reads": ["Q", "K", "V"], "writes": ["O"]},
    ]
