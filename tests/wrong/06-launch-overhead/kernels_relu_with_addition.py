# misconception: PyTorch fuses neighbours by itself
# expects: are operations of their own


def kernels_per_call():
    return {"eager": 2, "graph": 2, "compiled": 1, "fused_row": 1}
