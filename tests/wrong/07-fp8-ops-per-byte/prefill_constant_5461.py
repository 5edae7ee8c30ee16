# misconception: the number 5461 typed in
# expects: the same number for every input, so use the arguments; and you counted elements


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    return 5461
