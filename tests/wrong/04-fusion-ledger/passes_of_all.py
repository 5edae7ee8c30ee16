# misconception: Q, K, V and O counted as L x L
# expects: only L x L tensors count


def square_passes(kernels):
    return sum(len(kernel["reads"]) + len(kernel["writes"]) for kernel in kernels)
