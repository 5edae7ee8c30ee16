# misconception: paging reduces the bytes of a step
# expects: (c) is false: it wastes less capacity


def verdict():
    return {letter: letter in "bcef" for letter in "abcdefghi"}
