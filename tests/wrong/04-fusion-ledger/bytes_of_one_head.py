# misconception: one head only
# expects: every head has its own tensors


def moved_bytes(kernels, B, h, L, d_h, bytes_per_element):
    names = [name for kernel in kernels for name in kernel["reads"] + kernel["writes"]]
    columns = [d_h if name in ("Q", "K", "V", "O") else L for name in names]
    return bytes_per_element * B * L * sum(columns)
