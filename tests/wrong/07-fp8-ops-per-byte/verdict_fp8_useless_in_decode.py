# misconception: the FP8 rate never helps decode
# expects: above the crossing batch the linear layers are compute-bound


def verdict():
    return {letter: letter in "aefi" for letter in "abcdefghi"}
