# misconception: an intermediate costs one write
# expects: an intermediate is written and read: count both


def square_passes(kernels):
    return sum(name not in "QKVO" for kernel in kernels for name in kernel["writes"])
