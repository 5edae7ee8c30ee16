# misconception: the cache is taken to have 2 bytes per element
# expects: that holds for 2 bytes per cached element only


def decode_attention_flop_per_byte(query_heads, kv_heads, bytes_per_element, L, batch):
    return query_heads / kv_heads
