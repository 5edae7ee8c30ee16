# misconception: FP8 attention halves decode's bytes by itself
# expects: (g) is true


def verdict():
    return {letter: letter in "fk" for letter in "abcdefghijk"}
