# misconception: fewer than no sequences
# expects: the answer is negative where the weights alone do not fit


def most_sequences(gpus, capacity_bytes, weight_bytes, cache_bytes_per_token, context):
    return int((gpus * capacity_bytes - weight_bytes) // (cache_bytes_per_token * context))
