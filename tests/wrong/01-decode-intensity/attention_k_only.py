# misconception: the values are not read
# expects: a factor 2 is too much: K and V are both read


def attention_flop_per_byte(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv):
    flop = 4 * batch * query_heads * context * head_dim
    return flop / (batch * kv_heads * context * head_dim * bytes_per_kv)
