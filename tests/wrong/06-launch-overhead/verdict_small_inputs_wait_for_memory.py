# misconception: small inputs gain because memory is scarce
# expects: (d) is false: a few kilobytes take nanoseconds


def verdict():
    return {letter: letter in "cdeg" for letter in "abcdefgh"}
