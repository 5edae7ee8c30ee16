# misconception: every statement believed
# expects: (b) is false


def verdict():
    return dict.fromkeys("abcdefghi", True)
