# misconception: FP8 helps only prefill
# expects: (d) is false


def verdict():
    return {letter: letter in "bdef" for letter in "abcdefghi"}
