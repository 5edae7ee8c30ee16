"""A matrix times one vector, as every linear layer is at batch 1: each weight is read once and used once."""

from ._triton import INTERPRETED, KernelError, output, require, tl, torch, triton

# Found by trying tiles on an H200, each kernel among its neighbours. What they share: few warps with a few rows each,
# so that many programs fit on an SM and their loads overlap, and one block or more on its way while one is multiplied.
CHAINED = dict(BLOCK_N=4, BLOCK_K=1024, STAGES=2, num_warps=4)
MANY_ROWS = 16384  # of weights: from there on, twice the block is faster
ADDED = dict(BLOCK_N=4, BLOCK_K=1024, STAGES=3, num_warps=2)
NORMED = dict(ADDED, STAGES=4)
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


def added(x, weight, residual, norm, out=None, early=False):
    """Return y = x W^T + residual, y * norm, (1, N) each, and the sums of y's squares, one per program.

    That is a layer's product with the sum after it, and half of the RMSNorm that follows: with y * norm as its x and
    the sums as its `squares`, `normed` does the other half. `residual` may be `out`; `early` as in `chained`.
    """
    N, K = _shape(x, weight)
    out = output(out, x, (1, N))
    require(x=x, residual=residual, norm=norm)
    for name, tensor, shape in (("residual", residual, (1, N)), ("norm", norm, (N,))):
        if tensor.shape != shape:
            raise KernelError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")
    early = early and starts_early(x, "early=False")
    programs = triton.cdiv(N, ADDED["BLOCK_N"])
    scaled, squares = torch.empty_like(out), x.new_empty(programs, dtype=torch.float32)
    added_rows_kernel[(programs,)](
        x, weight, residual, norm, out, scaled, squares, N, K, EARLY=early, launch_pdl=early, **ADDED
    )
    return out, scaled, squares


def normed(x, weight, squares=None, eps=1e-5, gated=False, out=None, early=False):
    """Return r x W^T, (1, N), or silu(gate) * up of it where `gated`, for W of (2 N, K), gate first.

    r is 1 / rms(y), from the sums of y's squares as `added` gives them, and 1 without them. It is one number for all
    products, which can wait until they are done. `early` as in `chained`.
    """
    rows_, K = _shape(x, weight)
    if rows_ % (2 if gated else 1):
        raise KernelError(f"weight has {rows_} rows; gated, it must have the gate's and as many of up: an even number")
    N = rows_ // 2 if gated else rows_
    out = output(out, x, (1, N))
    count, SUMS = count_squares(squares)
    early = early and starts_early(x, "early=False")
    normed_rows_kernel[(triton.cdiv(N, NORMED["BLOCK_N"]),)](
        x, squares, weight, out, N, K, count, eps, SUMS, GATE=gated, EARLY=early, launch_pdl=early, **NORMED
    )
    return out


def count_squares(squares):
    """Return the number of sums of squares, checked, and the block that holds them: 0 and 0 without them."""
    if squares is None:
        return 0, 0
    require(dtypes=(torch.float32,), dims=1, squares=squares)
    return squares.numel(), triton.next_power_of_2(squares.numel())


def can_start_early(x):
    """Return whether a kernel can start before the last one ends: on sm_90 and later, not in the interpreter."""
    return not INTERPRETED and not (x.is_cuda and torch.cuda.get_device_capability(x.device) < (9, 0))


def starts_early(x, otherwise):
    """Return `can_start_early`; raise KernelError, naming what to use, where the card is the reason that it cannot."""
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (9, 0):
        raise KernelError(f"a kernel can start before the last one ends on sm_90 and later only: use {otherwise}")
    return can_start_early(x)


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
    return tl.load(w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :], mask=mask, other=0.0)  # HBM: read once


@triton.jit
def vector(x_ptr, start, K, BLOCK_K: tl.constexpr):
    """Return x from `start`, (BLOCK_K,), 0 beyond its end."""
    offs_k = start + tl.arange(0, BLOCK_K)
    return tl.load(x_ptr + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)


@triton.jit
def products(w, x, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return sums of 8 neighbouring products of each row, (BLOCK_N, BLOCK_K / 8): 2 BLOCK_N BLOCK_K FLOP.

    A thread holds 8 neighbours, 16 bytes of bf16, so that no thread waits for another, and the sum of all blocks takes
    an eighth of the registers that their products would: more programs fit on an SM.
    """
    return tl.sum(tl.reshape(w.to(tl.float32) * x[None, :], (BLOCK_N, BLOCK_K // 8, 8)), axis=2)


@triton.jit
def inverse_rms(squares, K, eps):
    """Return 1 / rms of K numbers, to multiply by, from the sums of their squares."""
    return tl.rsqrt(tl.sum(squares, axis=0) / K + eps)


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
    acc = w.to(tl.float32) * vector(x_ptr, 0, K, BLOCK_K)[None, :]  # (BLOCK_N, BLOCK_K)  2 BLOCK_N BLOCK_K FLOP
    for start in tl.range(BLOCK_K, K, BLOCK_K, num_stages=STAGES):
        w = weights(w_ptr, offs_n, start, N, K, BLOCK_K)
        acc += w.to(tl.float32) * vector(x_ptr, start, K, BLOCK_K)[None, :]
    y = tl.sum(acc, axis=1)
    tl.store(out_ptr + offs_n, y.to(out_ptr.dtype.element_ty), mask=offs_n < N)


# One program: BLOCK_N elements of the result.
# Grid: ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads BLOCK_N K elements of W, writes 2 BLOCK_N and an fp32 sum; vectors are in L2.
# This version: residual and half a norm inside; blocks beyond the first are asked for before the wait, too.
@triton.jit
def added_rows_kernel(
    x_ptr, w_ptr, residual_ptr, norm_ptr, out_ptr, scaled_ptr, squares_ptr, N, K, EARLY: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offs_n < N
    first = weights(w_ptr, offs_n, 0, N, K, BLOCK_K)
    norm = tl.load(norm_ptr + offs_n, mask=mask, other=0.0)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.zeros((BLOCK_N, BLOCK_K // 8), tl.float32)
    residual = tl.zeros((BLOCK_N,), residual_ptr.dtype.element_ty)
    # At least one turn, since the wait is in the first: the loop's loads of W begin before it, STAGES - 1 blocks ahead.
    # Attention, before a layer's first such product, leaves HBM idle at its end: what is there by then costs no time.
    for start in tl.range(BLOCK_K, tl.maximum(K, BLOCK_K + 1), BLOCK_K, num_stages=STAGES):
        w = weights(w_ptr, offs_n, start, N, K, BLOCK_K)
        if start == BLOCK_K:
            if EARLY:
                tl.extra.cuda.gdc_wait()  # x and the residual are earlier kernels' results
            residual = tl.load(residual_ptr + offs_n, mask=mask, other=0.0)
            acc = products(first, vector(x_ptr, 0, K, BLOCK_K), BLOCK_N, BLOCK_K)
        x = tl.zeros((BLOCK_K,), tl.float32)
        if start < K:  # within an `if`, so that the compiler does not ask for x ahead, before the wait
            x = vector(x_ptr, start, K, BLOCK_K)
        acc += products(w, x, BLOCK_N, BLOCK_K)
    y = (tl.sum(acc, axis=1) + residual.to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offs_n, y, mask=mask)
    y = tl.where(mask, y.to(tl.float32), 0.0)  # the rounded result, as a norm would read it
    tl.store(scaled_ptr + offs_n, (y * norm.to(tl.float32)).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(squares_ptr + tl.program_id(0), tl.sum(y * y, axis=0))


# One program: BLOCK_N elements of the result.
# Grid: ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads BLOCK_N K elements of W, twice that where gated, writes BLOCK_N; vectors are in L2.
# This version: the other half of the norm, and the gate, inside.
@triton.jit
def normed_rows_kernel(
    x_ptr, squares_ptr, w_ptr, out_ptr, N, K, count, eps, SUMS: tl.constexpr, GATE: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    up_ptr = w_ptr + tl.cast(N, tl.int64) * K
    w = weights(w_ptr, offs_n, 0, N, K, BLOCK_K)
    if GATE:
        u = weights(up_ptr, offs_n, 0, N, K, BLOCK_K)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()  # x and its squares are an earlier kernel's results
    x = vector(x_ptr, 0, K, BLOCK_K)
    if SUMS:
        squares = vector(squares_ptr, 0, count, SUMS)  # (SUMS,)
    acc = products(w, x, BLOCK_N, BLOCK_K)
    if GATE:
        acc_up = products(u, x, BLOCK_N, BLOCK_K)
    for start in tl.range(BLOCK_K, K, BLOCK_K, num_stages=STAGES):
        x = vector(x_ptr, start, K, BLOCK_K)
        acc += products(weights(w_ptr, offs_n, start, N, K, BLOCK_K), x, BLOCK_N, BLOCK_K)
        if GATE:
            acc_up += products(weights(up_ptr, offs_n, start, N, K, BLOCK_K), x, BLOCK_N, BLOCK_K)
    y = tl.sum(acc, axis=1)
    if SUMS:
        y *= inverse_rms(squares, K, eps)
    if GATE:
        up = tl.sum(acc_up, axis=1)
        if SUMS:
            up *= inverse_rms(squares, K, eps)
        y = y * tl.sigmoid(y) * up
    tl.store(out_ptr + offs_n, y.to(out_ptr.dtype.element_ty), mask=offs_n < N)
