# misconception: elements instead of bytes
# expects: you counted elements, not bytes


def cache_bytes_per_token(layers, query_heads, kv_heads, head_dim, bytes_per_kv):
    return layers * 2 * kv_heads * head_dim
