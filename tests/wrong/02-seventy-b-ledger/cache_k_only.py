# misconception: only K is kept
# expects: the cache holds K and V


def cache_bytes_per_token(layers, query_heads, kv_heads, head_dim, bytes_per_kv):
    return layers * kv_heads * head_dim * bytes_per_kv
