# misconception: a copy of the weights on each GPU
# expects: you gave every GPU a copy


def most_sequences(gpus, capacity_bytes, weight_bytes, cache_bytes_per_token, context):
    return max(0, int(gpus * (capacity_bytes - weight_bytes) // (cache_bytes_per_token * context)))
