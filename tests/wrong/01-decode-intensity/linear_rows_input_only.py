# misconception: the outputs are not written to memory
# expects: the output rows are missing


def linear_flop_per_byte_with_rows(batch, d_in, d_out, bytes_per_weight, bytes_per_activation):
    moved = bytes_per_weight * d_in * d_out + bytes_per_activation * batch * d_in
    return 2 * batch * d_in * d_out / moved
