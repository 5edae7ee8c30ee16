# misconception: the peak alone
# expects: the bytes are missing


def tokens_per_s(batch, flop, moved_bytes, gpus, peak_flop_per_s, bytes_per_s):
    return batch * gpus * peak_flop_per_s / flop
