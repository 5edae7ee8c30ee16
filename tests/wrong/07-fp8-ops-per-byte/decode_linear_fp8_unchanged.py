# misconception: FP8 leaves the intensity as it is in bf16
# expects: that holds for 2 bytes per weight only


def decode_linear_flop_per_byte(batch, bytes_per_weight):
    return batch
