# misconception: K and V as wide as Q
# expects: K and V have kv_dim columns


def step_flop(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary):
    layer = 2 * (4 * d_model**2 + 3 * d_model * mlp_dim) + 4 * context * d_model
    return batch * (layers * layer + 2 * d_model * vocabulary)
