# misconception: queries as few as keys
# expects: queries and outputs have query_heads heads


def attention_flop_per_byte_exact(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv, bytes_per_activation):
    flop = 4 * query_heads * context
    return flop / (2 * kv_heads * context * bytes_per_kv + 2 * kv_heads * bytes_per_activation)
