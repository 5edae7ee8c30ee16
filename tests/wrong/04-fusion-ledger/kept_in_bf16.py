# misconception: the sum of a row in the type of Q
# expects: the number per row is float32


def kept_for_backward_bytes(fused, B, h, L, bytes_per_element):
    return B * h * L * (1 if fused else L) * bytes_per_element
