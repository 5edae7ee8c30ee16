# misconception: tokens instead of sequences
# expects: that is a number of tokens


def most_sequences(gpus, capacity_bytes, weight_bytes, cache_bytes_per_token, context):
    return max(0, int((gpus * capacity_bytes - weight_bytes) // cache_bytes_per_token))
