# misconception: the time of a step
# expects: that is the time of a step


def tokens_per_s(batch, flop, moved_bytes, gpus, peak_flop_per_s, bytes_per_s):
    return max(flop / peak_flop_per_s, moved_bytes / bytes_per_s) / gpus
