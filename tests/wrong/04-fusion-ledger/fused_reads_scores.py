# misconception: the fused kernel still reads P
# expects: P is neither written to memory nor read from it


def fused_kernel():
    return [
        {"reads": ["Q", "K"], "writes": ["P"]},
        {"reads": ["P", "V"], "writes": ["O"]},
    ]
