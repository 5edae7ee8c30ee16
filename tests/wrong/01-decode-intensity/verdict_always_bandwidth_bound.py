# misconception: decode is always bandwidth-bound
# expects: (a) is false: above the crossing batch


def verdict():
    return {letter: letter in "abef" for letter in "abcdefghi"}
