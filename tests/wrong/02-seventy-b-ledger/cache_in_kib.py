# misconception: KiB given as bytes
# expects: return bytes, not KiB


def cache_bytes_per_token(layers, query_heads, kv_heads, head_dim, bytes_per_kv):
    return layers * 2 * kv_heads * head_dim * bytes_per_kv / 1024
