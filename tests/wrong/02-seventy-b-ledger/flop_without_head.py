# misconception: the LM head forgotten
# expects: the LM head is missing


def step_flop(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary):
    projections = 2 * d_model * (d_model + kv_dim)
    return batch * layers * (2 * (projections + 3 * d_model * mlp_dim) + 4 * context * d_model)
