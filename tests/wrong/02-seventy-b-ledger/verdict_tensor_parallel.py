# misconception: two GPUs double the intensity
# expects: (g) is false: each does half


def verdict():
    return {letter: letter in "abegh" for letter in "abcdefghi"}
