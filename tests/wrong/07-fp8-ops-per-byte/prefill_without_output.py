# misconception: O is not written
# expects: left out writing O


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    flop = 4 * query_heads * L**2 * head_dim * (0.5 if causal else 1)
    return flop / (bytes_per_element * L * head_dim * (query_heads + 2 * kv_heads))
