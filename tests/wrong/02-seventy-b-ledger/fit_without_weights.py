# misconception: the weights take no memory
# expects: the weights take memory too


def most_sequences(gpus, capacity_bytes, weight_bytes, cache_bytes_per_token, context):
    return int(gpus * capacity_bytes // (cache_bytes_per_token * context))
