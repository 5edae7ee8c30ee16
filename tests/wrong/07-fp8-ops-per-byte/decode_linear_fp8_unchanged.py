# misconception: FP8 leaves the intensity as it is in bf16
# expects: FP8 does not leave it unchanged


def decode_linear_flop_per_byte(batch, bytes_per_weight):
    return batch
