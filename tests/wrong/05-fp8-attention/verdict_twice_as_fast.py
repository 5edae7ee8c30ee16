# misconception: twice the peak is twice the speed
# expects: (h) is false


def verdict():
    return {letter: letter in "fghk" for letter in "abcdefghijk"}
