# misconception: statements left out
# expects: return a dict with the keys a, b, c


def verdict():
    return {"a": True}
