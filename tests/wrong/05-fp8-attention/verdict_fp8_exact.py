# misconception: accumulation in FP32 makes FP8 exact
# expects: (b) is false


def verdict():
    return {letter: letter in "bfgk" for letter in "abcdefghijk"}
