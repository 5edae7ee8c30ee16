# misconception: every query head has its own K and V
# expects: K and V have kv_heads heads


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    return L / bytes_per_element * (0.5 if causal else 1)
