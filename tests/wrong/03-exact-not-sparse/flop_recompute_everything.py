# misconception: both products of the forward pass are done again
# expects: recomputing S takes one product, not two


def backward_flop(method, L, head_dim):
    return (12 if method == "tiled" else 8) * L**2 * head_dim
