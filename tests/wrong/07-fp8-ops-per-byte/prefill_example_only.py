# misconception: L/2, which holds for multi-head attention in bf16 without a mask only
# expects: L/2 holds only for multi-head attention


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    return L / 2
