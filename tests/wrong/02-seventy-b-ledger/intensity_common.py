# misconception: 0.39 FLOP/byte: 54 GFLOP over the bytes read
# expects: leaves out the FLOP of the MLP, whose weights are in the bytes


def step_flop_per_byte(batch, context, layers, d_model, kv_dim, mlp_dim, vocabulary, bytes_per_weight, bytes_per_kv):
    weights = layers * (2 * d_model * (d_model + kv_dim) + 3 * d_model * mlp_dim) + d_model * vocabulary
    flop = batch * layers * (4 * context * d_model + 8 * d_model**2)
    return flop / (bytes_per_weight * weights + bytes_per_kv * batch * layers * 2 * context * kv_dim)
