# misconception: the limit taken for the value
# expects: that is the limit for a long context


def three_kernel_flop_per_byte(L, d_h, bytes_per_element):
    return d_h / bytes_per_element
