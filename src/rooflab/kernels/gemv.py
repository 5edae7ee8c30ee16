"""A matrix times one vector, as every linear layer is at batch 1: each weight is read once and used once."""

from ._triton import INTERPRETED, KernelError, output, require, tl, torch, triton

# Found by trying tiles on an H200, each kernel among its neighbours. What they share: few warps with a few rows each,
# so that many programs fit on an SM and their loads overlap, and one block on its way while another is multiplied.
CHAINED = dict(BLOCK_N=4, BLOCK_K=1024, STAGES=2, num_warps=4)
MANY_ROWS = 16384  # of weights: from there on, twice the block is faster
FUSED = dict(CHAINED, num_warps=2)
SUMMED = dict(CHAINED)  # more threads, which share a thousand squares
GATED = dict(CHAINED, STAGES=3)
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
    config = CHAINED | ({"BLOCK_K": 2 * CHAINED["BLOCK_K"]} if N > MANY_ROWS else {})
    chained_kernel[(triton.cdiv(N, config["BLOCK_N"]),)](x, weight, out, N, K, early, **config, launch_pdl=early)
    return out


def fused(x, weight, out=None, squares=None, eps=1e-5, gated=False, residual=None, norm=None, early=False):
    """Return f(r x W^T), (1, N), as `rows` or, if `early`, as `chained`, with its neighbours inside.

    f is silu(gate) * up where `gated`, for W of (2 N, K), gate first; `residual` (1, N) is added last, and may be
    `out`. RMSNorm is shared between two calls. With its weights `norm` (N,) the first returns three tensors: its result
    y, y * norm, and the sums of y's squares, one per program. The next takes y * norm as x and these sums as `squares`,
    and r is 1 / rms(y): one number, which can wait until the products are done. Without `squares` r is 1.
    """
    rows_, K = _shape(x, weight)
    if rows_ % (2 if gated else 1):
        raise KernelError(f"weight has {rows_} rows; gated, it must have the gate's and as many of up: an even number")
    N = rows_ // 2 if gated else rows_
    out = output(out, x, (1, N))
    for name, tensor, shape in (("norm", norm, (N,)), ("residual", residual, (1, N))):
        if tensor is not None:
            require(x=x, **{name: tensor})
            if tensor.shape != shape:
                raise KernelError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")
    if squares is not None:
        require(dtypes=(torch.float32,), dims=1, squares=squares)
    config = GATED if gated else FUSED if squares is None else SUMMED
    early = early and starts_early(x, "early=False")
    programs = triton.cdiv(N, config["BLOCK_N"])
    scaled, parts = (out, out) if norm is None else (torch.empty_like(out), x.new_empty(programs, dtype=torch.float32))
    count = 0 if squares is None else squares.numel()
    fused_rows_kernel[(programs,)](
        x, squares, weight, residual, norm, out, scaled, parts, N, K, count, eps,
        SUMS=triton.next_power_of_2(count) if count else 0, GATE=gated, ADD=residual is not None, NORM=norm is not None,
        EARLY=early, launch_pdl=early, **config,
    )  # fmt: skip
    return out if norm is None else (out, scaled, parts)


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
# This version: its first loads fill the gap behind the kernel before; later ones run STAGES - 1 blocks ahead.
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
# This version: gate, residual and half a norm on each side inside: here its sums are made, in the next they are used.
@triton.jit
def fused_rows_kernel(
    x_ptr, squares_ptr, w_ptr, residual_ptr, norm_ptr, out_ptr, scaled_ptr, parts_ptr, N, K, count, eps,
    SUMS: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offs_n < N
    up_ptr = w_ptr + tl.cast(N, tl.int64) * K
    w = weights(w_ptr, offs_n, 0, N, K, BLOCK_K)
    if GATE:
        u = weights(up_ptr, offs_n, 0, N, K, BLOCK_K)
    if NORM:
        norm = tl.load(norm_ptr + offs_n, mask=mask, other=0.0)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()  # x, its squares and the residual are earlier kernels' results
    x = vector(x_ptr, 0, K, BLOCK_K)
    if SUMS:
        squares = vector(squares_ptr, 0, count, SUMS)  # (SUMS,)
    if ADD:
        residual = tl.load(residual_ptr + offs_n, mask=mask, other=0.0)
    acc = w * x[None, :]  # (BLOCK_N, BLOCK_K)  2 BLOCK_N BLOCK_K FLOP
    if GATE:
        acc_up = u * x[None, :]
    for start in tl.range(BLOCK_K, K, BLOCK_K, num_stages=STAGES):
        x = vector(x_ptr, start, K, BLOCK_K)
        acc += weights(w_ptr, offs_n, start, N, K, BLOCK_K) * x[None, :]
        if GATE:
            acc_up += weights(up_ptr, offs_n, start, N, K, BLOCK_K) * x[None, :]
    y = tl.sum(acc, axis=1)
    if SUMS:
        factor = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        y *= factor
    if GATE:
        up = tl.sum(acc_up, axis=1)
        if SUMS:
            up *= factor
        y = y * tl.sigmoid(y) * up
    if ADD:
        y += residual.to(tl.float32)
    y = y.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offs_n, y, mask=mask)
    if NORM:
        y = tl.where(mask, y.to(tl.float32), 0.0)  # of the rounded result, as the norm would read it
        tl.store(scaled_ptr + offs_n, (y * norm.to(tl.float32)).to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(parts_ptr + tl.program_id(0), tl.sum(y * y, axis=0))
