# misconception: the MLP of the first transformers
# expects: mlp: 8 d^2 is two matrices of d x 4 d


def parameters(layers, d_model, kv_dim, mlp_dim, vocabulary):
    table = d_model * vocabulary
    attention = layers * (2 * d_model**2 + 2 * d_model * kv_dim)
    return {"attention": attention, "mlp": layers * 8 * d_model**2, "head": table, "embedding": table}
