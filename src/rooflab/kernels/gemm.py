"""C = A B^T in nine kernels, from single multiplications to a TMA producer that feeds Tensor Core consumers.

A is (M, K) and B is (N, K), as a linear layer has them: both have K contiguous. The sums are fp32.
"""

import math

from ._triton import INTERPRETED, KernelError, gl, gluon, hopper, output, require, sm_count, tl, torch, triton

TensorDescriptor = triton.tools.tensor_descriptor.TensorDescriptor
LayoutDescriptor = gluon.nvidia.hopper.TensorDescriptor
mbarrier, bulk = hopper.mbarrier, hopper.tma

DTYPES = (torch.bfloat16, torch.float16)
ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
NAIVE = dict(BLOCK_M=32, BLOCK_N=32, BLOCK_K=16, num_warps=4)
TENSOR_CORE = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3)
GROUPED = dict(TENSOR_CORE, GROUP=8)
TMA = dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=4)
PERSISTENT = dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=3)
SPLIT_K = dict(BLOCK_M=16, BLOCK_N=128, BLOCK_K=128, SPLIT=8, num_warps=4, num_stages=3)
# Candidates of `warp_specialised` by the class of the shape; `choose` takes the one that should be fastest.
FULL = dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=16, STAGES=4)
WARP_SPECIALISED = {
    "decode": [dict(BLOCK_M=128, BLOCK_N=64, BLOCK_K=64, GROUP=1, STAGES=6)],
    "small": [
        dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP=8, STAGES=6),
        dict(BLOCK_M=128, BLOCK_N=64, BLOCK_K=64, GROUP=8, STAGES=6),
        dict(BLOCK_M=128, BLOCK_N=192, BLOCK_K=64, GROUP=8, STAGES=5),
    ],
    "square": [FULL],
    "large": [FULL],
}
THIRDS = 192  # columns of a tile that three consumers share, 64 each; with other numbers, two share the rows
# What an H200's SM does in a microsecond while all others work too, measured at 256 rows: FLOP of its Tensor Cores, at
# the clock that the power allows (670 TFLOP/s together), and bytes from L2.
FLOP_PER_US, BYTES_PER_US = 5.07e6, 78e3
# Candidates of `autotuned` by the class of the shape, and what it takes while nothing is tuned: the first of each.
CONFIGS = {
    "decode": [
        dict(BLOCK_M=16, BLOCK_N=32, BLOCK_K=256, GROUP=1, num_warps=4, num_stages=4),
        dict(BLOCK_M=16, BLOCK_N=64, BLOCK_K=128, GROUP=1, num_warps=4, num_stages=4),
        dict(BLOCK_M=16, BLOCK_N=16, BLOCK_K=256, GROUP=1, num_warps=2, num_stages=5),
        dict(BLOCK_M=64, BLOCK_N=32, BLOCK_K=128, GROUP=1, num_warps=4, num_stages=5),
    ],
    "small": [
        dict(BLOCK_M=128, BLOCK_N=64, BLOCK_K=64, GROUP=4, num_warps=4, num_stages=5),
        dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=128, GROUP=4, num_warps=4, num_stages=4),
        dict(BLOCK_M=64, BLOCK_N=128, BLOCK_K=64, GROUP=4, num_warps=4, num_stages=4),
        dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP=4, num_warps=8, num_stages=4),
    ],
    "square": [
        dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=4),
        dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP=8, num_warps=4, num_stages=3),
        dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=3),
        dict(BLOCK_M=64, BLOCK_N=256, BLOCK_K=64, GROUP=8, num_warps=4, num_stages=4),
    ],
    "large": [
        dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=3),
        dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=4),
        dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP=16, num_warps=8, num_stages=4),
        dict(BLOCK_M=256, BLOCK_N=128, BLOCK_K=64, GROUP=8, num_warps=8, num_stages=4),
    ],
}
TUNED = {}  # (M, N, K, dtype, card): config, filled by `tune`


# Tiles ---------------------------------------------------------------------------------------------------------------


def tiles(M, N, block_m, block_n):
    """Return the number of output tiles.

    >>> tiles(4096, 4096, 128, 256)
    512
    """
    return math.ceil(M / block_m) * math.ceil(N / block_n)


def microseconds(M, N, K, sms, config):
    """Return how long a GEMM should take on an H200, without its start: the most blocks of K that a program has.

    A block takes as long as its products, or as the fetching of its operands.

    >>> config = dict(BLOCK_M=128, BLOCK_N=192, BLOCK_K=64)
    >>> [round(microseconds(256, N, 4096, sms=132, config=config)) for N in (6144, 12288, 22016)]
    [40, 40, 79]
    """
    BLOCK_M, BLOCK_N, BLOCK_K = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    blocks = math.ceil(tiles(M, N, BLOCK_M, BLOCK_N) / sms) * math.ceil(K / BLOCK_K)
    products = 2 * BLOCK_M * BLOCK_N * BLOCK_K / FLOP_PER_US
    operands = 2 * (BLOCK_M + BLOCK_N) * BLOCK_K / BYTES_PER_US
    return blocks * max(products, operands)


def choose(M, N, K, sms):
    """Return the config of `warp_specialised` that should take the least time.

    >>> for N, K in ((4096, 4096), (12288, 4096), (22016, 4096), (8192, 8192), (57344, 8192)):
    ...     print(choose(256, N, K, sms=132)["BLOCK_N"])
    64
    192
    192
    128
    128
    """
    return min(WARP_SPECIALISED[shape_class(M, N)], key=lambda config: microseconds(M, N, K, sms, config))


# Versions ------------------------------------------------------------------------------------------------------------


def reference(a, b):
    """Return A B^T in float64."""
    return a.double() @ b.double().T


def eager(a, b):
    """Return A B^T as PyTorch runs it: one kernel of cuBLAS."""
    return torch.nn.functional.linear(a, b)


def naive(a, b, out=None, config=None):
    """Return A B^T without Tensor Cores: 2 M N K FLOP of fp32, from small tiles."""
    return _by_pointers(naive_kernel, a, b, out, config or NAIVE)


def tensor_core(a, b, out=None, config=None):
    """Return A B^T on Tensor Cores, tiles in row-major order."""
    return _by_pointers(tensor_core_kernel, a, b, out, config or TENSOR_CORE)


def grouped(a, b, out=None, config=None):
    """Return A B^T on Tensor Cores, tiles in grouped order."""
    return _by_pointers(grouped_kernel, a, b, out, config or GROUPED)


def autotuned(a, b, out=None, config=None):
    """Return A B^T from the kernel of `grouped`, with the config that `tune` found, or else its class's default."""
    return _by_pointers(grouped_kernel, a, b, out, config or config_of(a, b))


def config_of(a, b):
    """Return the config that `autotuned` takes for these operands now: what `tune` found, or its class's default."""
    M, N, K = shape_of(a, b)
    return TUNED.get(_key(a, b)) or CONFIGS[shape_class(M, N)][0]


def shape_class(M, N):
    """Return which list of `CONFIGS` a product takes: by its rows if they are few, else by its number of tiles.

    >>> [shape_class(*shape) for shape in ((16, 28672), (256, 4096), (2048, 2048), (8192, 8192))]
    ['decode', 'small', 'square', 'large']
    """
    if M <= 512:
        return "decode" if M <= 32 else "small"
    return "square" if tiles(M, N, 128, 256) < 256 else "large"


def tune(a, b, candidates=None, timer=None):
    """Return the fastest config of `autotuned` for these operands, timed on this GPU, and remember it.

    `timer` takes a call and returns its time in any unit; without it, Triton's do_bench gives a median.
    Configs that need more shared memory than the card has are left out.
    """
    M, N, K = shape_of(a, b)
    timer = timer or (lambda call: triton.testing.do_bench(call, warmup=10, rep=50, return_mode="median"))
    out, times = output(None, a, (M, N)), {}
    candidates = candidates or CONFIGS[shape_class(M, N)]
    for index, config in enumerate(candidates):
        try:
            times[index] = timer(lambda config=config: grouped(a, b, out, config))
        except triton.runtime.errors.OutOfResources:
            continue
    if not times:
        raise KernelError(f"none of {len(candidates)} configs fits on {a.device}; give smaller ones as candidates")
    TUNED[_key(a, b)] = candidates[min(times, key=times.get)]
    return TUNED[_key(a, b)]


def split_k(a, b, out=None, config=None):
    """Return A B^T from two kernels for few rows: SPLIT programs share a tile's K, then their parts are added."""
    M, N, K = shape_of(a, b)
    out, config = output(out, a, (M, N)), config or SPLIT_K
    parts = torch.empty((config["SPLIT"], M, N), dtype=torch.float32, device=a.device)
    grid = (tiles(M, N, config["BLOCK_M"], config["BLOCK_N"]), config["SPLIT"])
    split_k_kernel[grid](a, b, parts, M, N, K, **config)
    sum_parts_kernel[(triton.cdiv(M * N, 1024),)](parts, out, M * N, config["SPLIT"], 1024, num_warps=4)
    return out


def tma(a, b, out=None, config=None):
    """Return A B^T with tiles fetched and stored by the Tensor Memory Accelerator."""
    return _by_descriptors(tma_kernel, a, b, out, config or TMA, tiles(len(a), len(b), 1, 1))


def persistent(a, b, out=None, config=None):
    """Return A B^T from one program per SM, each of which walks over tiles."""
    return _by_descriptors(persistent_kernel, a, b, out, config or PERSISTENT, sm_count(a.device))


def warp_specialised(a, b, out=None, config=None):
    """Return A B^T from programs of one warpgroup that moves tiles, and two or three that multiply. For sm_90 only."""
    M, N, K = shape_of(a, b)
    out = output(out, a, (M, N))
    require_hopper(a, "persistent")
    require_aligned(a=a, b=b, out=out)
    sms = sm_count(a.device)
    config = config or choose(M, N, K, sms)
    grid = (min(tiles(M, N, config["BLOCK_M"], config["BLOCK_N"]), sms),)
    kernel = turned_kernel if config["BLOCK_N"] == THIRDS else warp_specialised_kernel
    kernel[grid](*layout_descriptors(a, b, out, config), M, N, K, **config, num_warps=4)
    return out


def shape_of(a, b, dtypes=DTYPES):
    """Return M, N, K of A B^T, or raise KernelError."""
    require(dtypes=dtypes, dims=2, a=a, b=b)
    (M, K), N = a.shape, len(b)
    if b.shape[1] != K:
        raise KernelError(f"b has shape {tuple(b.shape)}; with a of {(M, K)} it must be (N, {K}): both have K last")
    return M, N, K


def _key(a, b):
    return (len(a), *b.shape, a.dtype, torch.cuda.get_device_name(a.device) if a.is_cuda else "interpreter")


def _by_pointers(kernel, a, b, out, config):
    M, N, K = shape_of(a, b)
    out = output(out, a, (M, N))
    kernel[(tiles(M, N, config["BLOCK_M"], config["BLOCK_N"]),)](a, b, out, M, N, K, **config)
    return out


def _by_descriptors(kernel, a, b, out, config, programs):
    M, N, K = shape_of(a, b)
    out = output(out, a, (M, N))
    require_tma(a)
    require_aligned(a=a, b=b, out=out)
    count = tiles(M, N, config["BLOCK_M"], config["BLOCK_N"])
    kernel[(min(count, programs),)](*descriptors(a, b, out, config), M, N, K, **config)
    return out


def descriptors(a, b, c, config):
    """Return what TMA must know of A, B and C: address, shape, strides, and the block that one request moves."""
    BLOCK_M, BLOCK_N, BLOCK_K = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    blocks = [BLOCK_M, BLOCK_K], [BLOCK_N, BLOCK_K], [BLOCK_M, BLOCK_N]
    return [TensorDescriptor.from_tensor(tensor, block) for tensor, block in zip((a, b, c), blocks, strict=True)]


def layout_descriptors(a, b, c, config):
    """Return the same for Gluon, which asks for the layout in shared memory; blocks of C are half a consumer's part."""
    BLOCK_M, BLOCK_N, BLOCK_K = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    blocks = [BLOCK_M, BLOCK_K], [BLOCK_N, BLOCK_K], [BLOCK_M // 2, BLOCK_N // 2]
    if BLOCK_N == THIRDS:
        blocks = [BLOCK_M, BLOCK_K], [BLOCK_N // 3, BLOCK_K], [BLOCK_M // 2, BLOCK_N // 3]
    return [
        LayoutDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, ELEMENTS[tensor.dtype]))
        for tensor, block in zip((a, b, c), blocks, strict=True)
    ]


def _capability(tensor):
    return torch.cuda.get_device_capability(tensor.device) if tensor.is_cuda else (9, 0)


def require_tma(tensor):
    """Raise KernelError if the tensor is on a card without TMA."""
    if _capability(tensor) < (9, 0):
        major, minor = _capability(tensor)
        raise KernelError(f"TMA needs sm_90 or later; this card is sm_{major}{minor}: use autotuned")


def require_hopper(tensor, otherwise):
    """Raise KernelError, naming the kernel to use otherwise, unless wgmma runs where the tensor is."""
    if INTERPRETED:
        raise KernelError(f"Gluon has no interpreter; for the same tiles in the same order use {otherwise}")
    major, minor = _capability(tensor)
    if major != 9:
        works = otherwise if major > 9 else "autotuned"
        raise KernelError(f"wgmma exists on sm_90 only; this card is sm_{major}{minor}: use {works}")


def require_aligned(**tensors):
    """Raise KernelError unless TMA can address the rows: they must start at multiples of 16 bytes."""
    for name, tensor in tensors.items():
        size = tensor.element_size()
        if tensor.shape[1] * size % 16:
            raise KernelError(
                f"{name} has rows of {tensor.shape[1]} elements; TMA needs a multiple of {16 // size}: use autotuned"
            )
        if tensor.data_ptr() % 16:
            raise KernelError(f"{name} starts {tensor.data_ptr() % 16} bytes off a multiple of 16: pass {name}.clone()")


# Kernels -------------------------------------------------------------------------------------------------------------


# One program: one tile of C, BLOCK_M x BLOCK_N.
# Grid: ceil(M / BLOCK_M) ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K elements unless L2 has them, writes BLOCK_M BLOCK_N.
# This version: the definition; every product is one multiply-add of an fp32 unit.
@triton.jit
def naive_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    offs_m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = (k + offs_k < K)[None, :]
        # Padding is 0: it adds nothing to a sum.
        a = tl.load(a_ptrs + k, mask=(offs_m < M)[:, None] & inside, other=0.0).to(tl.float32)  # (BLOCK_M, BLOCK_K)
        b = tl.load(b_ptrs + k, mask=(offs_n < N)[:, None] & inside, other=0.0).to(tl.float32)  # (BLOCK_N, BLOCK_K)
        # K comes first, so that a thread adds its own products; with K last, threads would have to exchange them.
        acc += tl.sum(a.T[:, :, None] * b.T[:, None, :], axis=0)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    c_mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=c_mask)  # HBM: written


# One program: one tile of C, BLOCK_M x BLOCK_N.
# Grid: ceil(M / BLOCK_M) ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K elements unless L2 has them, writes BLOCK_M BLOCK_N.
# This version: tl.dot runs on Tensor Cores; larger tiles use each byte more often, and loads run num_stages ahead.
@triton.jit
def tensor_core_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    offs_m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    # Without this the compiler keeps a way around the loop, and then lets no two products overlap.
    tl.assume(K > 0)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = (k + offs_k < K)[None, :]
        a = tl.load(a_ptrs + k, mask=(offs_m < M)[:, None] & inside, other=0.0)  # (BLOCK_M, BLOCK_K)
        b = tl.load(b_ptrs + k, mask=(offs_n < N)[:, None] & inside, other=0.0)  # (BLOCK_N, BLOCK_K)
        acc = tl.dot(a, tl.trans(b), acc)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    c_mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=c_mask)  # HBM: written


# One program: one tile of C, BLOCK_M x BLOCK_N.
# Grid: ceil(M / BLOCK_M) ceil(N / BLOCK_N) programs.
# HBM traffic per program: as before, but programs that run together share more rows of A and B, which come from L2.
# This version: tiles are numbered down GROUP rows before the next column, so that a wave is a block, not a stripe.
@triton.jit
def grouped_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = tl.program_id(0) // (GROUP * tiles_n) * GROUP
    place = tl.program_id(0) % (GROUP * tiles_n)
    height = tl.minimum(tiles_m - first, GROUP)
    offs_m = (first + place % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = place // height * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    tl.assume(K > 0)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = (k + offs_k < K)[None, :]
        a = tl.load(a_ptrs + k, mask=(offs_m < M)[:, None] & inside, other=0.0)  # (BLOCK_M, BLOCK_K)
        b = tl.load(b_ptrs + k, mask=(offs_n < N)[:, None] & inside, other=0.0)  # (BLOCK_N, BLOCK_K)
        acc = tl.dot(a, tl.trans(b), acc)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    c_mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=c_mask)  # HBM: written


# One program: the share of one tile of C that comes from every SPLIT-th block of K.
# Grid: (ceil(M / BLOCK_M) ceil(N / BLOCK_N), SPLIT).
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K / SPLIT elements, writes BLOCK_M BLOCK_N of fp32, mostly to L2.
# This version: for so few rows that there are fewer tiles than SMs: more programs, so more loads in flight.
@triton.jit
def split_k_kernel(
    a_ptr, b_ptr, parts_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    offs_m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(tl.program_id(1) * BLOCK_K, K, SPLIT * BLOCK_K):
        inside = (k + offs_k < K)[None, :]
        a = tl.load(a_ptrs + k, mask=(offs_m < M)[:, None] & inside, other=0.0)  # (BLOCK_M, BLOCK_K)
        b = tl.load(b_ptrs + k, mask=(offs_n < N)[:, None] & inside, other=0.0)  # (BLOCK_N, BLOCK_K)
        acc = tl.dot(a, tl.trans(b), acc)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
    rows = tl.program_id(1) * M + offs_m
    c_mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(parts_ptr + rows.to(tl.int64)[:, None] * N + offs_n[None, :], acc, mask=c_mask)  # L2: written


# One program: BLOCK elements of C.
# Grid: ceil(M N / BLOCK) programs.
# HBM traffic per program: reads SPLIT BLOCK elements of fp32, mostly from L2, writes BLOCK.
# This version: the parts are added in one order, so that equal operands give equal bits; atomic adds would not.
@triton.jit
def sum_parts_kernel(parts_ptr, c_ptr, n, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        acc += tl.load(parts_ptr + part * n.to(tl.int64) + offs, mask=mask, other=0.0)
    tl.store(c_ptr + offs, acc.to(c_ptr.dtype.element_ty), mask=mask)


# One program: one tile of C, BLOCK_M x BLOCK_N.
# Grid: ceil(M / BLOCK_M) ceil(N / BLOCK_N) programs.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K elements unless L2 has them, writes BLOCK_M BLOCK_N.
# This version: one thread asks for a whole tile by its corner; TMA makes the addresses, and fills the edge with 0.
@triton.jit
def tma_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = tl.program_id(0) // (GROUP * tiles_n) * GROUP
    place = tl.program_id(0) % (GROUP * tiles_n)
    height = tl.minimum(tiles_m - first, GROUP)
    m = (first + place % height) * BLOCK_M
    n = place // height * BLOCK_N
    tl.assume(K > 0)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([m, k])  # (BLOCK_M, BLOCK_K)
        b = b_desc.load([n, k])  # (BLOCK_N, BLOCK_K)
        acc = tl.dot(a, b.T, acc)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
    c_desc.store([m, n], acc.to(c_desc.dtype))  # HBM: written, the padding is left out


# One program: every num_programs-th tile of C.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K elements per tile unless L2 has them, writes BLOCK_M BLOCK_N.
# This version: programs stay; `flatten` makes one loop of both, so the next tile's loads start before this one's store.
@triton.jit
def persistent_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        first = tile // (GROUP * tiles_n) * GROUP
        place = tile % (GROUP * tiles_n)
        height = tl.minimum(tiles_m - first, GROUP)
        m = (first + place % height) * BLOCK_M
        n = place // height * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([m, k])  # (BLOCK_M, BLOCK_K)
            b = b_desc.load([n, k])  # (BLOCK_N, BLOCK_K)
            acc = tl.dot(a, b.T, acc)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
        c_desc.store([m, n], acc.to(c_desc.dtype))  # HBM: written, the padding is left out


@gluon.jit
def corner(tile, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr):
    """Return the first row and column of a tile, in grouped order."""
    tiles_m, tiles_n = (M + BLOCK_M - 1) // BLOCK_M, (N + BLOCK_N - 1) // BLOCK_N
    first = tile // (GROUP * tiles_n) * GROUP
    place = tile % (GROUP * tiles_n)
    height = gl.minimum(tiles_m - first, GROUP)
    return (first + place % height) * BLOCK_M, place // height * BLOCK_N


@gluon.jit
def make_ring(a_desc, b_desc, c_desc, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr):
    """Return the slots for A and B, their barriers, and the places from where half a consumer's part is stored."""
    BOXES: gl.constexpr = BLOCK_N // b_desc.block_type.shape[0]  # requests that bring a block of B
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES * BOXES] + b_desc.block_type.shape, b_desc.layout)
    c_stage = gl.allocate_shared_memory(c_desc.dtype, [CONSUMERS] + c_desc.block_type.shape, c_desc.layout)
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    drained = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(filled.index(slot), count=1)  # the producer's expect
        mbarrier.init(drained.index(slot), count=CONSUMERS)
    return a_ring, b_ring, c_stage, filled, drained


@gluon.jit
def produce(a_desc, b_desc, a_ring, b_ring, filled, drained, M, N, K, count,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
            STAGES: gl.constexpr):  # fmt: skip
    """Fill the ring, slot after slot, through all tiles; `step` counts blocks of K since the start."""
    ROWS: gl.constexpr = b_desc.block_type.shape[0]
    BOXES: gl.constexpr = BLOCK_N // ROWS
    step = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        m, n = corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            # A barrier starts in phase 0, so that waiting for "the phase before", 1, passes: all slots are empty.
            mbarrier.wait(drained.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(filled.index(slot), a_desc.block_type.nbytes + BOXES * b_desc.block_type.nbytes)
            bulk.async_copy_global_to_shared(a_desc, [m, k], filled.index(slot), a_ring.index(slot))
            for box in gl.static_range(BOXES):
                b = b_ring.index(slot * BOXES + box)
                bulk.async_copy_global_to_shared(b_desc, [n + box * ROWS, k], filled.index(slot), b)
            step += 1


@gluon.jit
def consume(c_desc, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, PART: gl.constexpr,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
            STAGES: gl.constexpr):  # fmt: skip
    """Multiply one part of each tile: half its rows, or a third of its columns, which are rows of C^T."""
    TURNED: gl.constexpr = c_stage.shape[0] == 3
    ROWS: gl.constexpr = BLOCK_N // 3 if TURNED else BLOCK_M // 2
    COLS: gl.constexpr = BLOCK_M if TURNED else BLOCK_N
    HALF: gl.constexpr = COLS // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    stage = c_stage.index(PART)
    step = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        m, n = corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        acc = gl.zeros([ROWS, COLS], gl.float32, layout)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(filled.index(slot), step // STAGES & 1)
            if TURNED:
                left, right = b_ring.index(slot * 3 + PART), a_ring.index(slot)
            else:
                left, right = a_ring.index(slot).slice(PART * ROWS, ROWS), b_ring.index(slot)
            # (ROWS, BLOCK_K) times (BLOCK_K, COLS): 2 ROWS COLS BLOCK_K FLOP
            acc = hopper.warpgroup_mma(left, right.permute((1, 0)), acc, use_acc=k > 0, is_async=True)
            # One product stays in flight; the one before is done, so its slot is empty.
            acc = hopper.warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(drained.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        acc = hopper.warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(drained.index((step + STAGES - 1) % STAGES))
        # Half a result at a time fits beside the ring. Meanwhile the producer fills it for the next tile.
        halves = acc.to(c_desc.dtype).reshape([ROWS, 2, HALF]).permute((0, 2, 1)).split()
        for half in gl.static_range(2):
            bulk.store_wait(0)
            if TURNED:
                stage.permute((1, 0)).store(halves[half])
                place = [m + half * HALF, n + PART * ROWS]
            else:
                stage.store(halves[half])
                place = [m + PART * ROWS, n + half * HALF]
            hopper.fence_async_shared()
            bulk.async_copy_shared_to_global(c_desc, place, stage)  # HBM: written
    bulk.store_wait(0)


# One program: every num_programs-th tile of C; four warps fetch, four multiply its upper half, four its lower half.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K elements per tile unless L2 has them, writes BLOCK_M BLOCK_N.
# This version: no warp both fetches and multiplies; they share a ring of STAGES slots with two barriers each, no more.
@gluon.jit
def warp_specialised_kernel(a_desc, b_desc, c_desc, M, N, K,
                            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
                            STAGES: gl.constexpr):  # fmt: skip
    count = ((M + BLOCK_M - 1) // BLOCK_M) * ((N + BLOCK_N - 1) // BLOCK_N)
    a_ring, b_ring, c_stage, filled, drained = make_ring(a_desc, b_desc, c_desc, BLOCK_N, STAGES, 2)
    # The first entry runs in the four warps of num_warps; the others bring their own, with 240 registers a thread.
    gl.warp_specialize([
        (produce, (a_desc, b_desc, a_ring, b_ring, filled, drained, M, N, K, count,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume, (c_desc, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, 0,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume, (c_desc, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, 1,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
    ], [4, 4], [240, 240])  # fmt: skip


# One program: every num_programs-th tile of C, 192 columns wide; four warps fetch, three times four have 64 columns.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: as before per tile; the width is chosen so that the tiles fill whole waves.
# This version: sizes of tensors are powers of two, numbers of consumers are not: three sum C^T = B A^T, 64 rows each.
@gluon.jit
def turned_kernel(a_desc, b_desc, c_desc, M, N, K,
                  BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
                  STAGES: gl.constexpr):  # fmt: skip
    count = ((M + BLOCK_M - 1) // BLOCK_M) * ((N + BLOCK_N - 1) // BLOCK_N)
    a_ring, b_ring, c_stage, filled, drained = make_ring(a_desc, b_desc, c_desc, BLOCK_N, STAGES, 3)
    gl.warp_specialize([
        (produce, (a_desc, b_desc, a_ring, b_ring, filled, drained, M, N, K, count,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume, (c_desc, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, 0,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume, (c_desc, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, 1,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume, (c_desc, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, 2,
                   BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
    ], [4, 4, 4], [160, 160, 160])  # fmt: skip
