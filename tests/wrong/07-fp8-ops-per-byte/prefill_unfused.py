# misconception: the score matrix goes through memory
# expects: the unfused version


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    flop = 4 * query_heads * L**2 * head_dim * (0.5 if causal else 1)
    elements = 2 * L * head_dim * (query_heads + kv_heads) + 4 * query_heads * L**2
    return flop / (bytes_per_element * elements)
