# misconception: the limit for a long context
# expects: that is the limit for a long context


def attention_flop_per_byte_exact(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv, bytes_per_activation):
    return 2 * query_heads / kv_heads / bytes_per_kv
