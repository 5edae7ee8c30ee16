# misconception: reading P is left out
# expects: reading P is missing


def moved_bytes(kernels, B, h, L, d_h, bytes_per_element):
    names = [name for kernel in kernels for name in kernel["reads"] if name != "P"]
    names += [name for kernel in kernels for name in kernel["writes"]]
    columns = [d_h if name in ("Q", "K", "V", "O") else L for name in names]
    return bytes_per_element * B * h * L * sum(columns)
