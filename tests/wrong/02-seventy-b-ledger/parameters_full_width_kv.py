# misconception: four square projections
# expects: attention: with grouped-query attention K and V are d_model x kv_dim


def parameters(layers, d_model, kv_dim, mlp_dim, vocabulary):
    table = d_model * vocabulary
    attention = layers * 4 * d_model**2
    return {"attention": attention, "mlp": layers * 3 * d_model * mlp_dim, "head": table, "embedding": table}
