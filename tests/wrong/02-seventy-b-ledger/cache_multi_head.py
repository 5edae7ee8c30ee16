# misconception: the cache of multi-head attention
# expects: only kv_heads keys and values are kept


def cache_bytes_per_token(layers, query_heads, kv_heads, head_dim, bytes_per_kv):
    return layers * 2 * query_heads * head_dim * bytes_per_kv
