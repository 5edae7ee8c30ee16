# misconception: the embedding table is read whole
# expects: a step does not read the embedding table


def weight_bytes(layers, d_model, kv_dim, mlp_dim, vocabulary, bytes_per_weight):
    inside = layers * (2 * d_model * (d_model + kv_dim) + 3 * d_model * mlp_dim)
    table = d_model * vocabulary
    return bytes_per_weight * (inside + 2 * table), bytes_per_weight * (inside + 2 * table)
