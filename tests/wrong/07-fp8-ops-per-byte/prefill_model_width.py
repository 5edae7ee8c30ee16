# misconception: the model width, all heads together, used as the width of each head
# expects: the model width where the head dimension belongs


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    d_model = query_heads * head_dim
    flop = 4 * query_heads * L**2 * d_model * (0.5 if causal else 1)
    return flop / (bytes_per_element * L * head_dim * (2 * query_heads + 2 * kv_heads))
