# misconception: grouped-query attention saves FLOP
# expects: not 4 L kv_dim


def step_flop(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary):
    projections = 2 * d_model * (d_model + kv_dim)
    layer = 2 * (projections + 3 * d_model * mlp_dim) + 4 * context * kv_dim
    return batch * (layers * layer + 2 * d_model * vocabulary)
