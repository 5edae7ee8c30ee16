# misconception: S and P are taken to be all L x L tensors
# expects: S and P are not the only L x L tensors


def square_passes(kernels):
    names = [name for kernel in kernels for name in kernel["reads"] + kernel["writes"]]
    return sum(name in ("S", "P") for name in names)
