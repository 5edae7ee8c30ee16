# misconception: elements counted as bytes
# expects: you counted elements, not bytes


def moved_bytes(kernels, B, h, L, d_h, bytes_per_element):
    names = [name for kernel in kernels for name in kernel["reads"] + kernel["writes"]]
    columns = [d_h if name in ("Q", "K", "V", "O") else L for name in names]
    return B * h * L * sum(columns)
