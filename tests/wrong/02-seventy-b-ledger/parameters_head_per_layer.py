# misconception: a head in each layer
# expects: head: the LM head is there once


def parameters(layers, d_model, kv_dim, mlp_dim, vocabulary):
    table = d_model * vocabulary
    attention = layers * (2 * d_model**2 + 2 * d_model * kv_dim)
    return {"attention": attention, "mlp": layers * 3 * d_model * mlp_dim, "head": layers * table, "embedding": table}
