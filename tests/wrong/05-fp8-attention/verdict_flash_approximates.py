# misconception: FlashAttention is an approximation
# expects: (a) is false


def verdict():
    return {letter: letter in "afgk" for letter in "abcdefghijk"}
