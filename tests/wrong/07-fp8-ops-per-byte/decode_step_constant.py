# misconception: 0.4 FLOP/byte typed in
# expects: the same number for every input, so use the arguments; and the MLP is missing


def decode_step_flop_per_byte(batch, L, d_model, kv_dim, mlp_dim, bytes_per_weight, bytes_per_kv):
    return 0.4
