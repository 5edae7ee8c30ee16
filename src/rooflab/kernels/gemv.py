"""A matrix times one vector, as every linear layer is at batch 1: each weight is read once and used once."""

from ._triton import KernelError, output, require, tl, torch, triton

CONFIG = dict(BLOCK_N=2, BLOCK_K=2048, num_warps=2)


def reference(x, weight):
    """Return x W^T in float64."""
    return eager(x.double(), weight.double())


def eager(x, weight):
    """Return x W^T as PyTorch runs it: one library kernel, for x of (1, K) and W of (N, K)."""
    return torch.nn.functional.linear(x, weight)


def rows(x, weight, out=None):
    """Return x W^T, (1, N), from one kernel: reads N K + K elements, writes N."""
    require(dims=2, x=x, weight=weight)
    N, K = weight.shape
    if x.shape != (1, K):
        raise KernelError(f"x has shape {tuple(x.shape)}; with weight of {(N, K)} it must be {(1, K)}: one vector")
    out = output(out, x, (1, N))
    rows_kernel[(triton.cdiv(N, CONFIG["BLOCK_N"]),)](x, weight, out, N, K, **CONFIG)
    return out


# One program: BLOCK_N elements of the result.
# Grid: ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads BLOCK_N K elements of W, writes BLOCK_N; x comes from L2.
# This version: no Tensor Core, since one of its tiles would be 1/16 full or less; wide loads, and many rows at once.
@triton.jit
def rows_kernel(x_ptr, w_ptr, out_ptr, N, K, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask = (offs_n < N)[:, None] & (offs_k < K)[None, :]
        w = tl.load(w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :], mask=mask, other=0.0)  # HBM: read once
        x = tl.load(x_ptr + offs_k, mask=offs_k < K, other=0.0)  # (BLOCK_K,)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]  # (BLOCK_N, BLOCK_K)  2 BLOCK_N BLOCK_K FLOP
    # One sum over the block at the end: in the loop, it would make each load wait.
    y = tl.sum(acc, axis=1)
    tl.store(out_ptr + offs_n, y.to(out_ptr.dtype.element_ty), mask=offs_n < N)
