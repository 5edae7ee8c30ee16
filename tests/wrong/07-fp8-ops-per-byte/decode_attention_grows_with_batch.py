# misconception: a larger batch raises the intensity of attention too
# expects: it does not grow with the batch


def decode_attention_flop_per_byte(query_heads, kv_heads, bytes_per_element, L, batch):
    return 2 * batch * (query_heads / kv_heads) / bytes_per_element
