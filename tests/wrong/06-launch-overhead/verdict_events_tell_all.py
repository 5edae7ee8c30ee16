# misconception: GPU events show the whole cost
# expects: (f) is false: the host


def verdict():
    return {letter: letter in "cefg" for letter in "abcdefgh"}
