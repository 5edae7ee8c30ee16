# misconception: a number of GiB taken for GB
# expects: a number of GiB stands for GB in the bytes


def step_flop_per_byte(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary, bytes_per_weight, bytes_per_kv):
    weights = layers * (2 * d_model * (d_model + kv_dim) + 3 * d_model * mlp_dim) + d_model * vocabulary
    flop = batch * (2 * weights + layers * 4 * context * d_model)
    gib = (bytes_per_weight * weights + bytes_per_kv * batch * layers * 2 * context * kv_dim) / 2**30
    return flop / (gib * 1e9)
