# misconception: S is taken to be the only large tensor
# expects: P is as large


def moved_bytes(kernels, B, h, L, d_h, bytes_per_element):
    names = [
        name
        for kernel in kernels
        for name in kernel["reads"] + kernel["writes"]
        if name not in ("P", "Q", "K", "V", "O")
    ]
    columns = [d_h if name in ("Q", "K", "V", "O") else L for name in names]
    return bytes_per_element * B * h * L * sum(columns)
