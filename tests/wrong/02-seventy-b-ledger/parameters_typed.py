# misconception: the numbers of Llama-2-70B typed in
# expects: attention: right for Llama-2-70B, and wrong for other sizes


def parameters(layers, d_model, kv_dim, mlp_dim, vocabulary):
    return {"attention": 12079595520, "mlp": 56371445760, "head": 262144000, "embedding": 262144000}
