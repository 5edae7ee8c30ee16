"""Attention in three kernels, the naive way: the L x L matrices S and P go through HBM, twice each."""

from . import softmax
from ._triton import KernelError, output, require, same_shape, tl, torch, triton

HEAD_DIMS = range(16, 129)
# By bytes per element: fp32 has no Tensor Core product without loss, and needs twice the space.
SCORES_CONFIG = {
    2: dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=4),
    4: dict(BLOCK_M=32, BLOCK_N=32, num_warps=8),
}
VALUES_CONFIG = {
    2: dict(BLOCK_M=128, BLOCK_N=64, num_warps=4, num_stages=3),
    4: dict(BLOCK_M=64, BLOCK_N=32, num_warps=8, num_stages=2),
}


def reference(q, k, v, causal):
    """Return softmax(Q K^T / sqrt(d_h)) V in float64."""
    return eager(q.double(), k.double(), v.double(), causal)


def eager(q, k, v, causal):
    """Return attention as plain PyTorch runs it: two matrix products, and elementwise kernels between them."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5  # (B, h, L, L)
    if causal:
        future = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)  # (L, L)
        s = s.masked_fill(future, -float("inf"))
    return torch.softmax(s, dim=-1) @ v  # (B, h, L, d_h)


def scores(q, k, causal, out=None):
    """Return S = Q K^T / sqrt(d_h), (B, h, L, L): reads 2 B h L d_h elements, writes B h L^2; the future is -inf."""
    require(dims=4, q=q, k=k)
    same_shape(q=q, k=k)
    B, h, L, d_h = _shape(q)
    out = output(out, q, (B, h, L, L))
    config = SCORES_CONFIG[q.element_size()]
    grid = (triton.cdiv(L, config["BLOCK_M"]), B * h)
    scores_kernel[grid](q, k, out, L, d_h, d_h**-0.5, _padded(d_h), bool(causal), **config)
    return out


def probabilities(s, out=None):
    """Return P, the softmax of each row of S, (B, h, L, L): reads B h L^2 elements, writes B h L^2."""
    require(dims=4, s=s)
    L = s.shape[-1]
    rows = s.view(-1, L)
    version = softmax.on_chip if L <= softmax.MAX_COLS else softmax.online
    return version(rows, out=output(out, s).view(-1, L)).view(s.shape)


def weighted_values(p, v, out=None):
    """Return O = P V, (B, h, L, d_h): reads B h L^2 + B h L d_h elements, writes B h L d_h."""
    require(dims=4, p=p, v=v)
    B, h, L, d_h = _shape(v)
    if p.shape != (B, h, L, L):
        raise KernelError(f"p has shape {tuple(p.shape)}; with v it must be {(B, h, L, L)}")
    out = output(out, v)
    config = VALUES_CONFIG[v.element_size()]
    weighted_values_kernel[(triton.cdiv(L, config["BLOCK_M"]), B * h)](p, v, out, L, d_h, _padded(d_h), **config)
    return out


def naive(q, k, v, causal, out=None):
    """Return attention from exactly three kernels: 4 B h (L^2 + L d_h) elements cross HBM."""
    return weighted_values(probabilities(scores(q, k, causal)), v, out=out)


def _shape(x):
    if x.shape[-1] not in HEAD_DIMS:
        raise KernelError(f"head dimension {x.shape[-1]}; choose from {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}")
    if x.shape[0] * x.shape[1] > 65535:
        raise KernelError(f"{x.shape[0]} x {x.shape[1]} heads; a grid holds at most 65535: split the batch")
    return x.shape


def _padded(d_h):
    return triton.next_power_of_2(d_h)


# One program: BLOCK_M rows of S of one head.
# Grid: (ceil(L / BLOCK_M), B h).
# HBM traffic per program: writes BLOCK_M L elements; its rows of Q are read once, K mostly comes from L2.
# This version: the baseline; S is rounded to 16 bits and written, future positions too, as -inf.
@triton.jit
def scores_kernel(
    q_ptr, k_ptr, s_ptr, L, d_h, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    head = tl.program_id(1).to(tl.int64) * L  # rows before this head
    q_mask = (offs_m < L)[:, None] & (offs_d < d_h)[None, :]
    # Padding is 0: it adds nothing to a dot product.
    q = tl.load(q_ptr + head * d_h + offs_m[:, None] * d_h + offs_d[None, :], mask=q_mask, other=0.0)  # (BLOCK_M, D)
    s_rows = s_ptr + head * L + offs_m.to(tl.int64)[:, None] * L
    for start in range(0, L, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        k_mask = (offs_n < L)[:, None] & (offs_d < d_h)[None, :]
        k = tl.load(k_ptr + head * d_h + offs_n[:, None] * d_h + offs_d[None, :], mask=k_mask, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (BLOCK_M, BLOCK_N)  2 BLOCK_M BLOCK_N d_h FLOP
        if CAUSAL:
            s = tl.where(offs_m[:, None] >= offs_n[None, :], s, -float("inf"))
        s_mask = (offs_m < L)[:, None] & (offs_n < L)[None, :]
        tl.store(s_rows + offs_n[None, :], s.to(s_ptr.dtype.element_ty), mask=s_mask)  # HBM: written


# One program: BLOCK_M rows of O of one head.
# Grid: (ceil(L / BLOCK_M), B h).
# HBM traffic per program: reads BLOCK_M L elements of P, writes BLOCK_M d_h; V mostly comes from L2.
# This version: the baseline; P is read back from HBM, future positions too, as 0.
@triton.jit
def weighted_values_kernel(p_ptr, v_ptr, o_ptr, L, d_h, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    head = tl.program_id(1).to(tl.int64) * L
    p_rows = p_ptr + head * L + offs_m.to(tl.int64)[:, None] * L
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, L, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        p_mask = (offs_m < L)[:, None] & (offs_n < L)[None, :]
        v_mask = (offs_n < L)[:, None] & (offs_d < d_h)[None, :]
        p = tl.load(p_rows + offs_n[None, :], mask=p_mask, other=0.0)  # (BLOCK_M, BLOCK_N)  HBM: read
        v = tl.load(v_ptr + head * d_h + offs_n[:, None] * d_h + offs_d[None, :], mask=v_mask, other=0.0)
        acc = tl.dot(p, v, acc, input_precision="ieee")  # (BLOCK_M, D)  2 BLOCK_M BLOCK_N d_h FLOP
    o_ptrs = o_ptr + head * d_h + offs_m[:, None] * d_h + offs_d[None, :]
    o_mask = (offs_m < L)[:, None] & (offs_d < d_h)[None, :]
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=o_mask)  # HBM: written
