# misconception: decode follows the bandwidth, at any batch
# expects: a higher bandwidth helps only the parts below the ridge


def gain_of_faster_machine(parts, peak_flop_per_s, bytes_per_s, peak_factor, bandwidth_factor):
    return bandwidth_factor
