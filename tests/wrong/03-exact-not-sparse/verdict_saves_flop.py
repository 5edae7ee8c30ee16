# misconception: FlashAttention saves FLOP
# expects: (d) is false: it does the same two products


def verdict():
    return {letter: letter in "adfh" for letter in "abcdefghij"}
