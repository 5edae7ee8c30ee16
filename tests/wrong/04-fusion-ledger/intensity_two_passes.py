# misconception: S and P are written only
# expects: S and P make four passes


def three_kernel_flop_per_byte(L, d_h, bytes_per_element):
    return 4 * L * d_h / (bytes_per_element * (4 * d_h + 2 * L))
