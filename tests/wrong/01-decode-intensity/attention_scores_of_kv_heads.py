# misconception: one product per KV head
# expects: a cached head is read once for all query heads


def attention_flop_per_byte(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv):
    flop = 4 * batch * kv_heads * context * head_dim
    return flop / (2 * batch * kv_heads * context * head_dim * bytes_per_kv)
