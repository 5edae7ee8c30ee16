# misconception: the plain version passed off as the tiled one
# expects: as much memory as an L x L matrix


def tiled_attention(Q, K, V, tile):
    return ex.plain_attention(Q, K, V)
