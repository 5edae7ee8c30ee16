# misconception: the scores of a whole prompt
# expects: L^2 is prefill


def step_flop_per_token(layers, d_model, kv_dim, mlp_dim, vocabulary, context):
    projections = 2 * d_model * (d_model + kv_dim)
    layer = 2 * (projections + 3 * d_model * mlp_dim) + 4 * context**2 * d_model
    return layers * layer + 2 * d_model * vocabulary
