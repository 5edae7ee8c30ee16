# misconception: three kernels are gone, so three launches are saved
# expects: k kernels to one saves k - 1 launches


def saved_launches(before, after):
    return len(before)
