# misconception: S and P stay on the chip
# expects: that is the fused version


def three_kernel_flop_per_byte(L, d_h, bytes_per_element):
    return L / bytes_per_element
