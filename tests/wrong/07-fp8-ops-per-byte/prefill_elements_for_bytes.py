# misconception: elements counted as bytes, and O not written: the common 4L/3
# expects: elements, not bytes


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    flop = 4 * query_heads * L**2 * head_dim * (0.5 if causal else 1)
    return flop / (L * head_dim * (query_heads + 2 * kv_heads))
