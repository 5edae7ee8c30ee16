# misconception: the product hands S to the softmax on the chip
# expects: kernel 2 reads S, which no kernel before it has written


def three_kernels():
    return [
        {"reads": ["Q", "K"], "writes": ["P"]},
        {"reads": ["S", "P", "V"], "writes": ["O"]},
    ]
