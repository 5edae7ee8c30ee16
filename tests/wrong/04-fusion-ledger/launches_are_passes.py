# misconception: a pass taken for a launch
# expects: that is the number of L x L passes; count kernels


def saved_launches(before, after):
    names = [name for kernel in before for name in kernel["reads"] + kernel["writes"]]
    rest = [name for kernel in after for name in kernel["reads"] + kernel["writes"]]
    return len(names) - len(rest)
