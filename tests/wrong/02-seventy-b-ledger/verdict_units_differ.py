# misconception: GB and GiB cannot give the same bytes
# expects: (b) is true


def verdict():
    return {letter: letter in "aeh" for letter in "abcdefghi"}
