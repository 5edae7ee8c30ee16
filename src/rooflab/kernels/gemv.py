"""A matrix times one vector, as every linear layer is at batch 1: each weight is read once and used once."""

from ._triton import INTERPRETED, KernelError, output, require, tl, torch, triton

CHAINED = dict(BLOCK_N=4, BLOCK_K=1024, STAGES=3, num_warps=2)
# With the norm inside, one block more on its way pays.
NORMED = dict(CHAINED, STAGES=4)
GATED = dict(NORMED, BLOCK_N=2)  # two rows of each half: four, as before
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
    early = starts_early(x, "rows")
    chained_kernel[(triton.cdiv(N, CHAINED["BLOCK_N"]),)](x, weight, out, N, K, early, **CHAINED, launch_pdl=early)
    return out


def fused(x, weight, out=None, norm=None, eps=1e-5, residual=None, gated=False):
    """Return f(n(x) W^T), (1, N), as `chained` with its neighbours inside.

    n is RMSNorm with the weights `norm` (K,); f is silu(gate) * up where `gated`, for W of (2 N, K), gate first;
    `residual` (1, N) is added last, and may be `out`.
    """
    rows_, K = _shape(x, weight)
    if rows_ % (2 if gated else 1):
        raise KernelError(f"weight has {rows_} rows; gated, it must have the gate's and as many of up: an even number")
    N = rows_ // 2 if gated else rows_
    out = output(out, x, (1, N))
    for name, tensor, shape in (("norm", norm, (K,)), ("residual", residual, (1, N))):
        if tensor is not None:
            require(x=x, **{name: tensor})
            if tensor.shape != shape:
                raise KernelError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")
    config = GATED if gated else CHAINED if norm is None else NORMED
    early = starts_early(x, "rows, and the norm, the gate and the sum apart")
    options = dict(NORM=norm is not None, GATE=gated, ADD=residual is not None, EARLY=early, launch_pdl=early)
    grid = (triton.cdiv(N, config["BLOCK_N"]),)
    fused_rows_kernel[grid](x, norm, weight, residual, out, N, K, eps, **options, **config)
    return out


def starts_early(x, otherwise):
    """Return whether a kernel can start before the last one ends: not in the interpreter; KernelError before sm_90."""
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (9, 0):
        raise KernelError(f"a kernel can start before the last one ends on sm_90 and later only: use {otherwise}")
    return not INTERPRETED


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


@triton.jit
def weights(w_ptr, offs_n, start, N, K, BLOCK_K: tl.constexpr):
    """Return rows `offs_n` of W from column `start`, (BLOCK_N, BLOCK_K), 0 beyond its edges."""
    offs_k = start + tl.arange(0, BLOCK_K)
    mask = (offs_n < N)[:, None] & (offs_k < K)[None, :]
    w = tl.load(w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :], mask=mask, other=0.0)  # HBM: read once
    return w.to(tl.float32)


@triton.jit
def vector(x_ptr, start, K, BLOCK_K: tl.constexpr):
    """Return x from `start`, (BLOCK_K,), 0 beyond its end."""
    offs_k = start + tl.arange(0, BLOCK_K)
    return tl.load(x_ptr + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)


# One program: BLOCK_N elements of the result.
# Grid: ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads BLOCK_N K elements of W, writes BLOCK_N; x comes from L2.
# This version: its first loads fill the gap behind the kernel before; later ones run STAGES - 1 ahead, 16 KiB or more.
@triton.jit
def chained_kernel(
    x_ptr, w_ptr, out_ptr, N, K, EARLY: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = weights(w_ptr, offs_n, 0, N, K, BLOCK_K)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # the next kernel may start as soon as there is room
        tl.extra.cuda.gdc_wait()  # x is the last kernel's result
    acc = w * vector(x_ptr, 0, K, BLOCK_K)[None, :]  # (BLOCK_N, BLOCK_K)  2 BLOCK_N BLOCK_K FLOP
    for start in tl.range(BLOCK_K, K, BLOCK_K, num_stages=STAGES):
        acc += weights(w_ptr, offs_n, start, N, K, BLOCK_K) * vector(x_ptr, start, K, BLOCK_K)[None, :]
    y = tl.sum(acc, axis=1)
    tl.store(out_ptr + offs_n, y.to(out_ptr.dtype.element_ty), mask=offs_n < N)


# One program: BLOCK_N elements of the result.
# Grid: ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads BLOCK_N K elements of W, twice that where gated, writes BLOCK_N; vectors are in L2.
# This version: norm, gate and residual inside. The norm's factor is one number for x, so it can wait for the end.
@triton.jit
def fused_rows_kernel(
    x_ptr, norm_ptr, w_ptr, residual_ptr, out_ptr, N, K, eps,
    NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    up_ptr = w_ptr + tl.cast(N, tl.int64) * K
    w = weights(w_ptr, offs_n, 0, N, K, BLOCK_K)
    if GATE:
        u = weights(up_ptr, offs_n, 0, N, K, BLOCK_K)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()  # x and the residual are earlier kernels' results
    x = vector(x_ptr, 0, K, BLOCK_K)
    if NORM:
        squares = x * x
        x *= vector(norm_ptr, 0, K, BLOCK_K)
    acc = w * x[None, :]  # (BLOCK_N, BLOCK_K)  2 BLOCK_N BLOCK_K FLOP
    if GATE:
        acc_up = u * x[None, :]
    for start in tl.range(BLOCK_K, K, BLOCK_K, num_stages=STAGES):
        x = vector(x_ptr, start, K, BLOCK_K)
        if NORM:
            squares += x * x
            x *= vector(norm_ptr, start, K, BLOCK_K)
        acc += weights(w_ptr, offs_n, start, N, K, BLOCK_K) * x[None, :]
        if GATE:
            acc_up += weights(up_ptr, offs_n, start, N, K, BLOCK_K) * x[None, :]
    y = tl.sum(acc, axis=1)
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        y *= factor
    if GATE:
        up = tl.sum(acc_up, axis=1)
        if NORM:
            up *= factor
        y = y * tl.sigmoid(y) * up
    mask = offs_n < N
    if ADD:
        y += tl.load(residual_ptr + offs_n, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs_n, y.to(out_ptr.dtype.element_ty), mask=mask)
