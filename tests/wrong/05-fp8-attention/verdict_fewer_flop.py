# misconception: FP8 halves the FLOP
# expects: (d) is false


def verdict():
    return {letter: letter in "dfgk" for letter in "abcdefghijk"}
