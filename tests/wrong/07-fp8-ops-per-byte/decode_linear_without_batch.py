# misconception: batch 1 is taken for granted
# expects: the batch is missing


def decode_linear_flop_per_byte(batch, bytes_per_weight):
    return 2 / bytes_per_weight
