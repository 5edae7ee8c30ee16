# misconception: FP8 has the uniform grid of INT8
# expects: (j) is false


def verdict():
    return {letter: letter in "fgjk" for letter in "abcdefghijk"}
