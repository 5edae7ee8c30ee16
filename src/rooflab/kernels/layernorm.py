"""The end of a layer: residual + relu(layernorm(x) * weight + bias), row by row. Three kernels, or one."""

from ._triton import KernelError, output, require, same_shape, sm_count, tl, torch, triton

MAX_COLS = 16384  # a row must fit in the registers of one program
WARPS_PER_SM = 32  # resident at once: 64 registers for each thread
STAGES, SHARED_BYTES = 3, 65536


def num_warps(cols):
    """Return the warps per program: one 16-byte load of 16-bit elements per thread, while registers last."""
    BLOCK = triton.next_power_of_2(cols)
    return max(BLOCK // 256, 1) if BLOCK <= 8192 else 16


def stages(x):
    """Return how many rows of x and residual are in flight: one in registers, the others in shared memory."""
    row_bytes = 2 * triton.next_power_of_2(x.shape[1]) * x.element_size()
    return min(STAGES, 1 + SHARED_BYTES // row_bytes)


def reference(x, residual, weight, bias, eps=1e-5):
    """Return the result in float64."""
    return eager(x.double(), residual.double(), weight.double(), bias.double(), eps)


def eager(x, residual, weight, bias, eps=1e-5):
    """Return the result as PyTorch runs it: 3 kernels, and two intermediates that cross HBM twice each."""
    normed = torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)  # reads R C, writes R C
    return residual + torch.relu(normed)  # relu reads R C, writes R C; the sum reads 2 R C, writes R C


def fused_row(x, residual, weight, bias, eps=1e-5, out=None):
    """Return the result from one kernel with one program per row: 3 R C elements cross HBM."""
    out = _prepare(x, residual, weight, bias, out)
    rows, cols = x.shape
    BLOCK = triton.next_power_of_2(cols)
    fused_row_kernel[(rows,)](x, residual, weight, bias, out, cols, eps, BLOCK, num_warps=num_warps(cols))
    return out


def fused_persistent(x, residual, weight, bias, eps=1e-5, out=None):
    """Return the result from one kernel with as many programs as the GPU holds at once; each takes many rows."""
    out = _prepare(x, residual, weight, bias, out)
    rows, cols = x.shape
    grid = (min(rows, WARPS_PER_SM // num_warps(cols) * sm_count(x.device)),)
    BLOCK = triton.next_power_of_2(cols)
    fused_persistent_kernel[grid](
        x, residual, weight, bias, out, rows, cols, eps, BLOCK, stages(x), num_warps=num_warps(cols)
    )
    return out


def _prepare(x, residual, weight, bias, out):
    require(dims=2, x=x, residual=residual)
    same_shape(x=x, residual=residual)
    require(dims=1, x=x[0], weight=weight, bias=bias)
    same_shape(**{"a row of x": x[0], "weight": weight, "bias": bias})
    if x.shape[1] > MAX_COLS:
        raise KernelError(f"x has rows of {x.shape[1]} elements; at most {MAX_COLS} fit in one program's registers")
    return output(out, x)


# One program: one row.
# Grid: one program per row.
# HBM traffic per program: reads 2 C elements (x, residual), writes C; weight and bias come from L2.
# This version: against eager, normalised row and relu stay in registers: 3 R C elements instead of 7 R C.
@triton.jit
def fused_row_kernel(x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, cols, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    x = tl.load(x_ptr + start + offs, mask=mask, other=0.0).to(tl.float32)  # (BLOCK,)  HBM: C read
    residual = tl.load(residual_ptr + start + offs, mask=mask)  # (BLOCK,)  HBM: C read, in flight with x
    weight = tl.load(weight_ptr + offs, mask=mask)  # (BLOCK,)
    bias = tl.load(bias_ptr + offs, mask=mask)  # (BLOCK,)
    mean = tl.sum(x) / cols
    # Subtract first: E[x^2] - E[x]^2 loses all digits when the mean is large.
    centred = tl.where(mask, x - mean, 0.0)  # padding must not add to the variance
    scale = tl.rsqrt(tl.sum(centred * centred) / cols + eps)
    y = centred * scale * weight.to(tl.float32) + bias.to(tl.float32)
    y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) + residual.to(tl.float32)  # relu keeps NaN, as PyTorch
    tl.store(out_ptr + start + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: C written


# One program: every num_programs-th row, from its own number on.
# Grid: as many programs as the GPU holds at once, all resident from start to end.
# HBM traffic per program: reads 2 C elements and writes C for each of its rows; weight and bias once.
# This version: weight and bias stay in registers, and the next rows' loads start before this row is computed.
@triton.jit
def fused_persistent_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, rows, cols, eps, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    weight = tl.load(weight_ptr + offs, mask=mask)  # (BLOCK,)  kept in 16 bits: half the registers
    bias = tl.load(bias_ptr + offs, mask=mask)  # (BLOCK,)
    # num_stages: loads run ahead of their use by asynchronous copies into shared memory.
    first = tl.program_id(0).to(tl.int64)  # so that row * cols is a 64-bit product
    for row in tl.range(first, rows, tl.num_programs(0), num_stages=STAGES):
        start = row * cols
        x = tl.load(x_ptr + start + offs, mask=mask, other=0.0).to(tl.float32)  # (BLOCK,)  HBM: C read
        residual = tl.load(residual_ptr + start + offs, mask=mask)  # (BLOCK,)  HBM: C read
        mean = tl.sum(x) / cols
        centred = tl.where(mask, x - mean, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred) / cols + eps)
        y = centred * scale * weight.to(tl.float32) + bias.to(tl.float32)
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) + residual.to(tl.float32)
        tl.store(out_ptr + start + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: C written
