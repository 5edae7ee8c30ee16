# misconception: 54 GFLOP: n(4 L d + 8 d^2)
# expects: leaves out the MLP, which does most of the FLOP


def step_flop(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary):
    return batch * layers * (4 * context * d_model + 8 * d_model**2)
