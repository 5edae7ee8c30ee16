# misconception: linear attention only saves memory
# expects: linear attention never multiplies L x L numbers


def forward_flop(method, L, head_dim, radius):
    keys = 2 * radius + 1 if method == "window" else L
    return 4 * L * keys * head_dim
