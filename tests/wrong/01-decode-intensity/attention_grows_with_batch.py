# misconception: the batch shares one cache
# expects: it does not grow with the batch


def attention_flop_per_byte(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv):
    return 2 * batch * query_heads / kv_heads / bytes_per_kv
