# misconception: reading is free
# expects: the reads are missing


def moved_bytes(kernels, B, h, L, d_h, bytes_per_element):
    names = [name for kernel in kernels for name in kernel["writes"]]
    columns = [d_h if name in ("Q", "K", "V", "O") else L for name in names]
    return bytes_per_element * B * h * L * sum(columns)
