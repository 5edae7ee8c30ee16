# misconception: a causal mask halves decode
# expects: a causal mask halves neither


def step_flop_per_token(layers, d_model, kv_dim, mlp_dim, vocabulary, context):
    projections = 2 * d_model * (d_model + kv_dim)
    layer = 2 * (projections + 3 * d_model * mlp_dim) + 4 * context * d_model / 2
    return layers * layer + 2 * d_model * vocabulary
