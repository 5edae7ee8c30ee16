# misconception: one row serves the whole batch
# expects: each sequence has its own rows


def linear_flop_per_byte_with_rows(batch, d_in, d_out, bytes_per_weight, bytes_per_activation):
    moved = bytes_per_weight * d_in * d_out + bytes_per_activation * (d_in + d_out)
    return 2 * batch * d_in * d_out / moved
