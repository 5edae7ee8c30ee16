# misconception: any neighbours can be fused
# expects: (g) is false: the second product needs the whole softmax row


def verdict():
    return {letter: letter in "cdeg" for letter in "abcdefgh"}
