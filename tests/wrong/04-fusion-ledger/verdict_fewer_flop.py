# misconception: fusion saves multiplications
# expects: (b) is false: it does the same multiplications


def verdict():
    return {letter: letter in "bcde" for letter in "abcdefgh"}
