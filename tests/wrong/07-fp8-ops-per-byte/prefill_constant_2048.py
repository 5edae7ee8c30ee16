# misconception: the right number of the example typed in
# expects: the same number for every input


def prefill_attention_flop_per_byte(L, query_heads, kv_heads, head_dim, bytes_per_element, causal):
    return 2048
