# misconception: the MLP is missing from the FLOP: the common 0.4 FLOP/byte
# expects: the MLP is missing


def decode_step_flop_per_byte(batch, L, d_model, kv_dim, mlp_dim, bytes_per_weight, bytes_per_kv):
    projections = 2 * d_model * d_model + 2 * d_model * kv_dim
    flop = batch * (2 * projections + 4 * L * d_model)
    weights = projections + 3 * d_model * mlp_dim
    return flop / (bytes_per_weight * weights + bytes_per_kv * batch * 2 * L * kv_dim)
