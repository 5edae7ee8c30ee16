# misconception: only the KV heads multiply with the cache
# expects: 4 L d_model FLOP, not 4 L kv_dim


def decode_step_flop_per_byte(batch, L, d_model, kv_dim, mlp_dim, bytes_per_weight, bytes_per_kv):
    weights = 2 * d_model * d_model + 2 * d_model * kv_dim + 3 * d_model * mlp_dim
    flop = batch * (2 * weights + 4 * L * kv_dim)
    return flop / (bytes_per_weight * weights + bytes_per_kv * batch * 2 * L * kv_dim)
