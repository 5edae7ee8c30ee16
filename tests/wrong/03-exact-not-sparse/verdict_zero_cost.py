# misconception: exactness costs nothing
# expects: (e) is false: the forward pass rescales


def verdict():
    return {letter: letter in "aefh" for letter in "abcdefghij"}
