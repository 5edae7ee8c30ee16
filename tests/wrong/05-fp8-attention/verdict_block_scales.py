# misconception: block scales make FP8 accurate
# expects: (e) is false


def verdict():
    return {letter: letter in "efgk" for letter in "abcdefghijk"}
