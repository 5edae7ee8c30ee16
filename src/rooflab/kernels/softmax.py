"""Softmax over the last axis of a matrix. Rows read three times, twice, or once."""

from ._triton import KernelError, output, require, sm_count, tl, torch, triton

MAX_COLS = 32768  # on_chip keeps a row in the registers of one program
BLOCK, NUM_WARPS = 4096, 8  # of the versions that walk along a row
TILE = 2048  # elements per program of on_chip, where rows are shorter
LONG, LONG_WARPS, LONG_PROGRAMS_PER_SM = 16384, 16, 4  # beyond LONG columns on_chip loads a row ahead


def reference(x):
    """Return the softmax in float64; a row of -inf, or with NaN or +inf, gives NaN, as in PyTorch."""
    return torch.softmax(x.double(), dim=-1)


def three_pass(x, out=None):
    """Return the softmax from one kernel that reads each row three times: up to 4 R C elements cross HBM."""
    return _walk(three_pass_kernel, x, out)


def online(x, out=None):
    """Return the softmax from one kernel that reads each row twice: up to 3 R C elements cross HBM."""
    return _walk(online_kernel, x, out)


def _walk(kernel, x, out):
    require(dims=2, x=x)
    out = output(out, x)
    rows, cols = x.shape
    block = min(BLOCK, triton.next_power_of_2(cols))
    kernel[(rows,)](x, out, cols, block, num_warps=min(NUM_WARPS, max(block // 256, 1)))
    return out


def on_chip(x, out=None):
    """Return the softmax from one kernel that reads each row once: 2 R C elements cross HBM."""
    require(dims=2, x=x)
    rows, cols = x.shape
    if cols > MAX_COLS:
        raise KernelError(f"x has rows of {cols} elements; at most {MAX_COLS} fit in one program: use online")
    out = output(out, x)
    BLOCK_C = triton.next_power_of_2(cols)
    if BLOCK_C > LONG:
        grid = (min(rows, LONG_PROGRAMS_PER_SM * sm_count(x.device)),)
        on_chip_long_kernel[grid](x, out, rows, cols, BLOCK_C, num_warps=LONG_WARPS)
        return out
    BLOCK_R = max(min(TILE // BLOCK_C, triton.next_power_of_2(rows)), 1)
    on_chip_kernel[(triton.cdiv(rows, BLOCK_R),)](
        x, out, rows, cols, BLOCK_R, BLOCK_C, num_warps=on_chip_warps(BLOCK_R * BLOCK_C)
    )
    return out


def on_chip_warps(elements):
    """Return on_chip's warps: 16 elements per thread, and 64 in the largest tile, where more threads only wait."""
    return max(elements // 512, 1) if elements <= 8192 else 8


# One program: one row, in blocks of BLOCK elements.
# Grid: one program per row.
# HBM traffic per program: reads C elements three times, writes C; a re-read may come from L2 if the rows in flight fit.
# This version: the definition, made safe: maximum, then sum, then result.
@triton.jit
def three_pass_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    offs = tl.arange(0, BLOCK)
    maximum = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, cols, BLOCK):
        mask = start + offs < cols
        # -inf, not 0: padding must lose every maximum, and its exponential is 0.
        x = tl.load(x_ptr + row + start + offs, mask=mask, other=-float("inf"))  # (BLOCK,)  HBM: C read
        maximum = tl.maximum(maximum, x.to(tl.float32))
    m = tl.max(maximum)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        mask = start + offs < cols
        x = tl.load(x_ptr + row + start + offs, mask=mask, other=-float("inf"))  # (BLOCK,)  C read again
        total += tl.exp(x.to(tl.float32) - m)
    l = tl.sum(total)  # noqa: E741 - the field's letter
    for start in range(0, cols, BLOCK):
        mask = start + offs < cols
        x = tl.load(x_ptr + row + start + offs, mask=mask)  # (BLOCK,)  C read once more
        y = tl.exp(x.to(tl.float32) - m) / l
        tl.store(out_ptr + row + start + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: C written


# One program: one row, in blocks of BLOCK elements.
# Grid: one program per row.
# HBM traffic per program: reads C elements twice, writes C; the re-read may come from L2 if the rows in flight fit.
# This version: maximum and sum in one pass; when the maximum grows, the sum so far is rescaled.
@triton.jit
def online_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    offs = tl.arange(0, BLOCK)
    m, l = -float("inf"), 0.0  # noqa: E741
    for start in range(0, cols, BLOCK):
        mask = start + offs < cols
        x = tl.load(x_ptr + row + start + offs, mask=mask, other=-float("inf")).to(tl.float32)  # (BLOCK,)  HBM: C read
        m_new = tl.maximum(m, tl.max(x))
        # While all is -inf, subtract 0: -inf - -inf would be NaN, although a later element may be finite.
        base = tl.where(m_new == -float("inf"), 0.0, m_new)
        l = l * tl.exp(m - base) + tl.sum(tl.exp(x - base))  # noqa: E741
        m = m_new
    for start in range(0, cols, BLOCK):
        mask = start + offs < cols
        x = tl.load(x_ptr + row + start + offs, mask=mask)  # (BLOCK,)  C read again
        y = tl.exp(x.to(tl.float32) - m) / l
        tl.store(out_ptr + row + start + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: C written


# One program: BLOCK_R whole rows.
# Grid: ceil(R / BLOCK_R) programs.
# HBM traffic per program: reads BLOCK_R C elements, writes BLOCK_R C.
# This version: rows stay on chip between maximum, sum and result, so each is read once; short rows share a program.
@triton.jit
def on_chip_kernel(x_ptr, out_ptr, rows, cols, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_c = tl.arange(0, BLOCK_C)
    offs = offs_r.to(tl.int64)[:, None] * cols + offs_c[None, :]  # (BLOCK_R, BLOCK_C)
    mask = (offs_r < rows)[:, None] & (offs_c < cols)[None, :]
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf")).to(tl.float32)  # (BLOCK_R, BLOCK_C)  HBM: read once
    # exp2 is the GPU's own exponential; log2(e) goes into its argument.
    e = tl.exp2((x - tl.max(x, axis=1)[:, None]) * 1.4426950408889634)
    y = e * (1 / tl.sum(e, axis=1))[:, None]  # one division a row
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: written once


# One program: every num_programs-th row.
# Grid: LONG_PROGRAMS_PER_SM programs per SM, all resident from start to end.
# HBM traffic per program: reads C elements and writes C for each of its rows.
# This version: a row fills an SM, so nothing else hides its load; the next row's load starts before this row's work.
@triton.jit
def on_chip_long_kernel(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    stride = cols.to(tl.int64)
    following = tl.load(x_ptr + tl.program_id(0) * stride + offs, mask=mask, other=-float("inf"))  # (BLOCK,)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        x = following
        after = row + tl.num_programs(0)
        ahead = mask & (after < rows)
        following = tl.load(x_ptr + after * stride + offs, mask=ahead, other=-float("inf"))  # HBM: read, used next turn
        m = tl.max(x.to(tl.float32), axis=0)
        total = tl.sum(tl.exp2((x.to(tl.float32) - m) * 1.4426950408889634), axis=0)
        # The exponentials are computed again: kept in fp32, they would not fit in the registers beside two rows.
        y = tl.exp2((x.to(tl.float32) - m) * 1.4426950408889634 - tl.log2(total))
        tl.store(out_ptr + row * stride + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: written once
