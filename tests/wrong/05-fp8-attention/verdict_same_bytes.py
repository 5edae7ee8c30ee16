# misconception: both save the same bytes
# expects: (c) is false


def verdict():
    return {letter: letter in "cfgk" for letter in "abcdefghijk"}
