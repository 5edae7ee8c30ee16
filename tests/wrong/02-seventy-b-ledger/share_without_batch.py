# misconception: each sequence reads the weights again
# expects: the batch is missing, or each sequence reads the weights again


def cache_share(batch, context, weight_bytes, cache_bytes_per_token):
    cache = batch * context * cache_bytes_per_token
    return cache / (batch * weight_bytes + cache)
