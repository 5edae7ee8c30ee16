# misconception: the causal mask changes nothing
# expects: ignored the causal mask


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    return 2 * L * query_heads / (bytes_per_element * (query_heads + kv_heads))
