# misconception: the answer of the example typed in
# expects: the same number for every input


def saved_launches(before, after):
    return 2
