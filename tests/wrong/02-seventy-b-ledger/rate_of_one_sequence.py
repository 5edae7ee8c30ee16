# misconception: the steps per second
# expects: multiply by the batch


def tokens_per_s(batch, flop, moved_bytes, gpus, peak_flop_per_s, bytes_per_s):
    return gpus / max(flop / peak_flop_per_s, moved_bytes / bytes_per_s)
