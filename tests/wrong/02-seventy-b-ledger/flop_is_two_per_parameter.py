# misconception: 2 FLOP per parameter and nothing else
# expects: the products with the cached K and V are missing


def step_flop(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary):
    projections = 2 * d_model * (d_model + kv_dim)
    return batch * 2 * (layers * (projections + 3 * d_model * mlp_dim) + d_model * vocabulary)
