# misconception: a causal mask halves decode
# expects: a causal mask halves neither


def step_flop(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary):
    projections = 2 * d_model * (d_model + kv_dim)
    layer = 2 * (projections + 3 * d_model * mlp_dim) + 2 * context * d_model
    return batch * (layers * layer + 2 * d_model * vocabulary)
