# misconception: one layer
# expects: every layer has its own cache


def cache_bytes_per_token(layers, query_heads, kv_heads, head_dim, bytes_per_kv):
    return 2 * kv_heads * head_dim * bytes_per_kv
