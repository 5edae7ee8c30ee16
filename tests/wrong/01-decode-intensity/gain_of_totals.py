# misconception: one roof for the whole step
# expects: you took the totals


def gain_of_faster_machine(parts, peak_flop_per_s, bytes_per_s, peak_factor, bandwidth_factor):
    flop, moved = (sum(part[place] for part in parts) for place in (0, 1))
    before = max(flop / peak_flop_per_s, moved / bytes_per_s)
    return before / max(flop / peak_flop_per_s / peak_factor, moved / bytes_per_s / bandwidth_factor)
