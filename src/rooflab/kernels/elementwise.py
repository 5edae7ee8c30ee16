"""A chain of k elementwise operations: y = x * c0 + c1, times c2, plus c3, ... One kernel each, or one for all."""

from ._triton import KernelError, output, require, tl, triton

# Even places multiply, odd places add. Short binary fractions: no dtype rounds them.
CONSTANTS = (1.5, -0.25, 0.75, 0.5, 1.25, -0.125, 0.875, 0.375)
BLOCK, NUM_WARPS = 2048, 4


def reference(x, k):
    """Return the chain of `k` operations on `x`, in float64."""
    return eager(x.double(), k)


def eager(x, k):
    """Return the chain as PyTorch runs it: k kernels, each rounding its result to x's dtype."""
    _require_length(k)
    for i, constant in enumerate(CONSTANTS[:k]):
        x = x * constant if i % 2 == 0 else x + constant
    return x


def unfused(x, k, out=None):
    """Return the chain from k kernels: 2 k n elements cross HBM."""
    require(x=x)
    _require_length(k)
    out = output(out, x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    for i, constant in enumerate(CONSTANTS[:k]):
        source = x if i == 0 else out
        one_op_kernel[grid](source, out, x.numel(), constant, i % 2 == 0, BLOCK, num_warps=NUM_WARPS)
    return out


def fused(x, k, out=None):
    """Return the chain from one kernel: 2 n elements cross HBM, for any k."""
    require(x=x)
    _require_length(k)
    out = output(out, x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    fused_kernel[grid](x, out, x.numel(), CONSTANTS[:k], k, BLOCK, num_warps=NUM_WARPS)
    return out


def _require_length(k):
    if k not in range(1, len(CONSTANTS) + 1):
        raise KernelError(f"k is {k}; choose a whole number from 1 to {len(CONSTANTS)}")


# One program: one operation on BLOCK neighbouring elements.
# Grid: ceil(n / BLOCK) programs.
# HBM traffic per program: reads BLOCK elements, writes BLOCK elements.
# This version: the baseline; the chain launches it k times, and each launch reads what the one before has written.
@triton.jit
def one_op_kernel(x_ptr, out_ptr, n, constant, MULTIPLY: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n  # the last block may reach past the end
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)  # (BLOCK,)  HBM: read
    y = x * constant if MULTIPLY else x + constant
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: written


# One program: K operations on BLOCK neighbouring elements.
# Grid: ceil(n / BLOCK) programs, launched once.
# HBM traffic per program: reads BLOCK elements, writes BLOCK elements.
# This version: the K - 1 intermediates stay in registers, in fp32; one rounding instead of K.
@triton.jit
def fused_kernel(x_ptr, out_ptr, n, CONSTANTS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    y = tl.load(x_ptr + offs, mask=mask).to(tl.float32)  # (BLOCK,)  HBM: read
    for i in tl.static_range(K):
        y = y * CONSTANTS[i] if i % 2 == 0 else y + CONSTANTS[i]
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: written
