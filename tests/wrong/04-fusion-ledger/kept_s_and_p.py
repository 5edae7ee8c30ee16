# misconception: S is kept beside P
# expects: S is not needed once P is there


def kept_for_backward_bytes(fused, B, h, L, bytes_per_element):
    return B * h * L * (4 if fused else 2 * L * bytes_per_element)
