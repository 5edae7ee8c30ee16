# misconception: the capacity scaled to GiB
# expects: you scaled it from GB to GiB


def most_sequences(gpus, capacity_bytes, weight_bytes, cache_bytes_per_token, context):
    return max(0, int((gpus * capacity_bytes / 1e9 * 2**30 - weight_bytes) // (cache_bytes_per_token * context)))
