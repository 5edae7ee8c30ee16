# misconception: the fused kernel still writes S
# expects: S is neither written to memory nor read from it


def fused_kernel():
    return [{"reads": ["Q", "K", "V"], "writes": ["S", "P", "O"]}]
