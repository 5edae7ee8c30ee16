# misconception: grouped-query attention saves only capacity
# expects: (f) is true


def verdict():
    return {letter: letter in "be" for letter in "abcdefghi"}
