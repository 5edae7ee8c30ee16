# misconception: an MLP of two matrices
# expects: mlp: a gated MLP has three matrices


def parameters(layers, d_model, kv_dim, mlp_dim, vocabulary):
    table = d_model * vocabulary
    attention = layers * (2 * d_model**2 + 2 * d_model * kv_dim)
    return {"attention": attention, "mlp": layers * 2 * d_model * mlp_dim, "head": table, "embedding": table}
