# misconception: a faster unit is a faster step
# expects: a higher peak helps only the parts above the ridge


def gain_of_faster_machine(parts, peak_flop_per_s, bytes_per_s, peak_factor, bandwidth_factor):
    return peak_factor
