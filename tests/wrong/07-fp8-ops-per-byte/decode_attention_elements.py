# misconception: elements counted as bytes
# expects: elements, not bytes


def decode_attention_flop_per_byte(query_heads, kv_heads, bytes_per_element, L, batch):
    return 2 * query_heads / kv_heads
