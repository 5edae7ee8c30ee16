# misconception: 0.41 FLOP/byte typed in
# expects: the same number for every input, so use the arguments; and n(4 L d + 8 d^2) leaves out the FLOP of the MLP


def step_flop_per_byte(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary, bytes_per_weight, bytes_per_kv):
    return 0.41
