# misconception: a longer context raises the intensity
# expects: it does not grow with the context


def attention_flop_per_byte(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv):
    return 2 * context * query_heads / kv_heads / bytes_per_kv
