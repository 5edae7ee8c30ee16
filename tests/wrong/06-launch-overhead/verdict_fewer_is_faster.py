# misconception: fewer kernels are always faster
# expects: (a) is false: at 1 row, torch.compile


def verdict():
    return {letter: letter in "aceg" for letter in "abcdefgh"}
