# misconception: tiling leaves scores out
# expects: tiling does not hide keys


def forward_flop(method, L, head_dim, radius):
    if method == "linear":
        return 4 * L * head_dim**2
    keys = L if method == "plain" else 2 * radius + 1
    return 4 * L * keys * head_dim
