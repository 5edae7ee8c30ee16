"""Kernels that measure one resource each: HBM read and write, the exponential unit, latency, a launch."""

from ._triton import KernelError, output, require, sm_count, tl, torch, triton

COPY_BLOCK, COPY_WARPS = 4096, 8
READ_BLOCK, READ_WARPS, READ_PROGRAMS_PER_SM = 4096, 16, 16
EXP_BLOCK, EXP_WARPS = 1024, 4  # 8 elements, so 8 independent chains, per thread
INDEX_DTYPES = (torch.int32, torch.int64)


def copy(x, out=None):
    """Return a copy of `x`: reads n elements, writes n."""
    require(x=x)
    out = output(out, x)
    copy_kernel[(triton.cdiv(x.numel(), COPY_BLOCK),)](x, out, x.numel(), COPY_BLOCK, num_warps=COPY_WARPS)
    return out


def read(x):
    """Return one fp32 partial sum of `x` per program: reads n elements, writes next to nothing."""
    require(x=x)
    programs = min(triton.cdiv(x.numel(), READ_BLOCK), READ_PROGRAMS_PER_SM * sm_count(x.device))
    out = torch.empty(programs, dtype=torch.float32, device=x.device)
    read_kernel[(programs,)](x, out, x.numel(), READ_BLOCK, num_warps=READ_WARPS)
    return out


def write(out, value):
    """Fill `out` with `value` and return it: writes n elements, reads none."""
    require(out=out)
    write_kernel[(triton.cdiv(out.numel(), COPY_BLOCK),)](
        out, out.numel(), float(value), COPY_BLOCK, num_warps=COPY_WARPS
    )
    return out


def exponentials(x, repeats, out=None):
    """Return y after `repeats` steps of y = 2^-y from y = x: `exp_count` exponentials for one read and one write."""
    require(dtypes=(torch.float32,), x=x)
    _require_count("repeats", repeats)
    out = output(out, x)
    grid = (triton.cdiv(x.numel(), EXP_BLOCK),)
    exponentials_kernel[grid](x, out, x.numel(), repeats, EXP_BLOCK, num_warps=EXP_WARPS)
    return out


def exponentials_reference(x, repeats):
    """Return what `exponentials` computes, in float64; each step shrinks an error, as y tends to 0.6412."""
    y = x.double()
    for _ in range(repeats):
        y = torch.exp2(-y)
    return y


def exp_count(n, repeats):
    """Return the exponentials that `exponentials` computes for n elements.

    >>> exp_count(1000, 64)
    64000
    """
    return n * repeats


def chase(indices, steps):
    """Return i after `steps` loads of i = indices[i] from i = 0, each waiting for the one before: a latency.

    Every index must lie inside `indices`, as those of `random_cycle` do; no one checks it here.
    """
    require(dtypes=INDEX_DTYPES, dims=1, indices=indices)
    _require_count("steps", steps)
    out = torch.empty(1, dtype=indices.dtype, device=indices.device)
    chase_kernel[(1,)](indices, out, steps, num_warps=1)
    return out


def random_cycle(n, stride=1, dtype=torch.int64, device="cpu", seed=0):
    """Return indices for `chase`: from 0 through all n stops in random order and back, stops `stride` elements apart.

    >>> random_cycle(4).unique().tolist()
    [0, 1, 2, 3]
    """
    if (n - 1) * stride > torch.iinfo(dtype).max:
        raise KernelError(f"{n} stops, {stride} apart, need larger indices than {dtype} has: use torch.int64")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)) * stride
    indices = torch.zeros(n * stride, dtype=dtype)
    indices[order] = order.roll(-1).to(dtype)
    return indices.to(device)


def add_one(x):
    """Add one to `x` in place and return it: one launch; with one element, nothing but a launch."""
    require(dtypes=(torch.float32,), x=x)
    add_one_kernel[(triton.cdiv(x.numel(), 128),)](x, x.numel(), 128, num_warps=1)
    return x


def _require_count(name, value):
    if not (isinstance(value, int) and 1 <= value < 2**31):
        raise KernelError(f"{name} is {value!r}; choose a whole number from 1 to {2**31 - 1}")


# One program: BLOCK neighbouring elements.
# Grid: ceil(n / BLOCK) programs.
# HBM traffic per program: reads BLOCK elements, writes BLOCK elements.
# This version: the only one; the bandwidth that every fused kernel is compared with.
@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask), mask=mask)


# One program: every num_programs-th block of BLOCK elements.
# Grid: a few programs per SM, at most one per block.
# HBM traffic per program: reads its share of the elements, writes one.
# This version: the only one; BLOCK sums run side by side, so no load waits for a reduction.
@triton.jit
def read_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for _ in range(tl.program_id(0), (n - 1) // BLOCK + 1, tl.num_programs(0)):
        acc += tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)  # (BLOCK,)  HBM: read
        offs += tl.num_programs(0) * BLOCK
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc))


# One program: BLOCK neighbouring elements.
# Grid: ceil(n / BLOCK) programs.
# HBM traffic per program: writes BLOCK elements.
# This version: the only one.
@triton.jit
def write_kernel(out_ptr, n, value, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.full((BLOCK,), value, tl.float32).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offs, values, mask=offs < n)


# One program: `repeats` exponentials of each of BLOCK neighbouring elements.
# Grid: ceil(n / BLOCK) programs.
# HBM traffic per program: reads BLOCK elements, writes BLOCK elements.
# This version: the only one; a thread's elements are independent chains, which keep the exponential unit full.
@triton.jit
def exponentials_kernel(x_ptr, out_ptr, n, repeats, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    y = tl.load(x_ptr + offs, mask=mask, other=0.0)  # (BLOCK,)
    for _ in range(repeats):
        y = tl.exp2(-y)  # stays between 0 and 1
    tl.store(out_ptr + offs, y, mask=mask)


# One program: the whole chain; there is only one.
# Grid: one program of one warp.
# HBM traffic per program: `steps` sectors of 32 bytes, one after the other.
# This version: the only one; each address comes from the load before, so nothing overlaps.
@triton.jit
def chase_kernel(indices_ptr, out_ptr, steps):
    i = tl.load(indices_ptr)
    for _ in range(steps - 1):
        i = tl.load(indices_ptr + i)
    tl.store(out_ptr, i)


# One program: BLOCK neighbouring elements.
# Grid: ceil(n / BLOCK) programs.
# HBM traffic per program: reads BLOCK elements, writes BLOCK elements; with one element, practically none.
# This version: the only one; the least that a launch can do and still be seen to have happened.
@triton.jit
def add_one_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, mask=mask) + 1, mask=mask)
