# misconception: exact means identical to the bit
# expects: (b) is false: they add in another order


def verdict():
    return {letter: letter in "abfh" for letter in "abcdefghij"}
