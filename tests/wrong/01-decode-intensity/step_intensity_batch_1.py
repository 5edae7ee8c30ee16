# misconception: the intensity of batch 1 for every batch
# expects: the batch is missing


def step_flop_per_byte(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary, bytes_per_weight, bytes_per_kv):
    weights = layers * (2 * d_model * (d_model + kv_dim) + 3 * d_model * mlp_dim) + d_model * vocabulary
    flop = 2 * weights + layers * 4 * context * d_model
    return flop / (bytes_per_weight * weights + bytes_per_kv * layers * 2 * context * kv_dim)
