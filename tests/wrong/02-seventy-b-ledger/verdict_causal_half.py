# misconception: a causal mask halves decode
# expects: (d) is false: the one new token


def verdict():
    return {letter: letter in "abdeh" for letter in "abcdefghi"}
