# misconception: 54 GFLOP typed in
# expects: the same number for every input, so use the arguments; and n(4 L d + 8 d^2) leaves out the MLP


def step_flop(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary):
    return 54e9
