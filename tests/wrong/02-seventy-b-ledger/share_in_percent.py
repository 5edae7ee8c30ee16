# misconception: a percentage
# expects: return a fraction, not a percentage


def cache_share(batch, context, weight_bytes, cache_bytes_per_token):
    cache = batch * context * cache_bytes_per_token
    return 100 * cache / (weight_bytes + cache)
