"""A matrix times one vector, as every linear layer is at batch 1: each weight is read once and used once."""

from ._triton import INTERPRETED, KernelError, output, require, tl, torch, triton

CHAINED = dict(BLOCK_N=1, BLOCK_K=4096, num_warps=4)
CONFIG = dict(BLOCK_N=2, BLOCK_K=2048, num_warps=2)


def reference(x, weight):
    """Return x W^T in float64."""
    return eager(x.double(), weight.double())


def eager(x, weight):
    """Return x W^T as PyTorch runs it: one library kernel, for x of (1, K) and W of (N, K)."""
    return torch.nn.functional.linear(x, weight)


def rows(x, weight, out=None):
    """Return x W^T, (1, N), from one kernel: reads N K + K elements, writes N."""
    N, K = _shape(x, weight)
    out = output(out, x, (1, N))
    rows_kernel[(triton.cdiv(N, CONFIG["BLOCK_N"]),)](x, weight, out, N, K, **CONFIG)
    return out


def chained(x, weight, out=None):
    """Return what `rows` returns, from a kernel that starts while the one before it still runs. For sm_90 and later.

    It fetches its first weights, which no kernel writes, and only then waits for the one before.
    """
    N, K = _shape(x, weight)
    out = output(out, x, (1, N))
    early = not INTERPRETED
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (9, 0):
        raise KernelError("a kernel can start before the last one ends on sm_90 and later only: use rows")
    options = CHAINED | ({"launch_pdl": True} if early else {})
    chained_kernel[(triton.cdiv(N, CHAINED["BLOCK_N"]),)](x, weight, out, N, K, early, **options)
    return out


def _shape(x, weight):
    require(dims=2, x=x, weight=weight)
    N, K = weight.shape
    if x.shape != (1, K):
        raise KernelError(f"x has shape {tuple(x.shape)}; with weight of {(N, K)} it must be {(1, K)}: one vector")
    return N, K


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


# One program: BLOCK_N elements of the result.
# Grid: ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads BLOCK_N K elements of W, writes BLOCK_N; x comes from L2.
# This version: programmatic dependent launch; the gap between two kernels is filled with the second one's first loads.
@triton.jit
def chained_kernel(
    x_ptr, w_ptr, out_ptr, N, K, EARLY: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # the next kernel may start as soon as there is room
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    w = tl.load(w_ptrs, mask=(offs_n < N)[:, None] & (offs_k < K)[None, :], other=0.0)  # HBM: read once
    if EARLY:
        tl.extra.cuda.gdc_wait()  # x is the last kernel's result
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for start in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + start + offs_k, mask=start + offs_k < K, other=0.0)  # (BLOCK_K,)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]  # (BLOCK_N, BLOCK_K)  2 BLOCK_N BLOCK_K FLOP
        following = start + BLOCK_K
        w = tl.load(w_ptrs + following, mask=(offs_n < N)[:, None] & (following + offs_k < K)[None, :], other=0.0)
    y = tl.sum(acc, axis=1)
    tl.store(out_ptr + offs_n, y.to(out_ptr.dtype.element_ty), mask=offs_n < N)
