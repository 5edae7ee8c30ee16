# misconception: cache over weights
# expects: that is cache over weights


def cache_share(batch, context, weight_bytes, cache_bytes_per_token):
    return batch * context * cache_bytes_per_token / weight_bytes
