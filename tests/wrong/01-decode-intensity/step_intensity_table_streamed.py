# misconception: the embedding table read whole
# expects: the embedding table is not read


def step_flop_per_byte(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary, bytes_per_weight, bytes_per_kv):
    weights = layers * (2 * d_model * (d_model + kv_dim) + 3 * d_model * mlp_dim) + d_model * vocabulary
    flop = batch * (2 * weights + layers * 4 * context * d_model)
    held = weights + d_model * vocabulary
    return flop / (bytes_per_weight * held + bytes_per_kv * batch * layers * 2 * context * kv_dim)
