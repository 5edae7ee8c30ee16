# misconception: the MLP is left out of FLOP and bytes
# expects: the MLP is missing, from the FLOP and from the bytes


def decode_step_flop_per_byte(batch, L, d_model, kv_dim, mlp_dim, bytes_per_weight, bytes_per_kv):
    weights = 2 * d_model * d_model + 2 * d_model * kv_dim
    flop = batch * (2 * weights + 4 * L * d_model)
    return flop / (bytes_per_weight * weights + bytes_per_kv * batch * 2 * L * kv_dim)
