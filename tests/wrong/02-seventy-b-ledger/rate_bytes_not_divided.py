# misconception: each GPU reads all weights
# expects: the bytes are divided too


def tokens_per_s(batch, flop, moved_bytes, gpus, peak_flop_per_s, bytes_per_s):
    return batch / max(flop / (gpus * peak_flop_per_s), moved_bytes / bytes_per_s)
