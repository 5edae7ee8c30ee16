# misconception: names joined to one string
# expects: give a list of names


def three_kernels():
    return [{"reads": "QK", "writes": "S"}, {"reads": "S", "writes": "P"}, {"reads": "PV", "writes": "O"}]
