# misconception: the embedding as a product
# expects: one row of the table is looked up


def step_flop_per_token(layers, d_model, kv_dim, mlp_dim, vocabulary, context):
    projections = 2 * d_model * (d_model + kv_dim)
    layer = 2 * (projections + 3 * d_model * mlp_dim) + 4 * context * d_model
    return layers * layer + 2 * 2 * d_model * vocabulary
