# misconception: fusing saves no space
# expects: keeps one number per row, not the L x L matrix P


def kept_for_backward_bytes(fused, B, h, L, bytes_per_element):
    return B * h * L * L * bytes_per_element
