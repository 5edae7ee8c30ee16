# misconception: n(4 L d + 8 d^2): no MLP, no LM head, K and V full width
# expects: leaves out the MLP, which does most of the FLOP


def step_flop_per_token(layers, d_model, kv_dim, mlp_dim, vocabulary, context):
    return layers * (4 * context * d_model + 8 * d_model**2)
