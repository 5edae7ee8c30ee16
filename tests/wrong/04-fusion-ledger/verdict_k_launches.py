# misconception: k kernels to one saves k launches
# expects: (a) is false: the fused kernel is launched too


def verdict():
    return {letter: letter in "acde" for letter in "abcdefgh"}
