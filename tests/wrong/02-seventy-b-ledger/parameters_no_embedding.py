# misconception: what is not streamed is not held
# expects: embedding: the embedding table is held


def parameters(layers, d_model, kv_dim, mlp_dim, vocabulary):
    table = d_model * vocabulary
    attention = layers * (2 * d_model**2 + 2 * d_model * kv_dim)
    return {"attention": attention, "mlp": layers * 3 * d_model * mlp_dim, "head": table, "embedding": 0}
