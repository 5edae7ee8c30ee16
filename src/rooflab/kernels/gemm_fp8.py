"""C = A B^T of FP8 operands (e4m3) into bf16: one scale per tensor, per row, or per block of 128.

An element stands for its value times its scale. Tensor Cores add FP8 products with fewer bits than fp32 has; the block
version moves their sum to fp32 after each 128.
"""

from . import gemm
from ._triton import KernelError, gl, gluon, hopper, output, require, sm_count, tl, torch, triton

mbarrier, bulk = hopper.mbarrier, hopper.tma
FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
BLOCK = gl.constexpr(128)  # elements of K, and rows of B, that share a scale in `fp8_block`
PLAIN = dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=128, GROUP=8, num_warps=8, num_stages=3)
SCALED = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, GROUP=8, num_warps=8, num_stages=5)
SPECIALISED = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, GROUP=8, STAGES=6)


# `numerics.quantize` asks whether all numbers are finite, and the CPU must wait for the answer; this one is timed.
def quantise(x, rows, cols):
    """Return `x` as e4m3 and its fp32 scales, one for each block of rows x cols: the largest element becomes 448.

    >>> values, scales = quantise(torch.tensor([[1.0, -2.0], [0.5, 4.0]]), 1, 2)
    >>> values.float().tolist()
    [[224.0, -448.0], [56.0, 448.0]]
    """
    R, C = x.shape
    tall, wide = triton.cdiv(R, rows), triton.cdiv(C, cols)
    padded = torch.nn.functional.pad(x.float(), (0, wide * cols - C, 0, tall * rows - R))
    blocks = padded.view(tall, rows, wide, cols)
    scales = blocks.abs().amax(dim=(1, 3)) / LARGEST  # (tall, wide)
    scales = torch.where(scales == 0, 1.0, scales)
    values = (blocks / scales[:, None, :, None]).view(tall * rows, wide * cols)[:R, :C]
    return values.contiguous().to(FP8), scales


def dequantise(values, scales, rows, cols):
    """Return the float64 matrix that FP8 values and their scales stand for."""
    spread = scales.double().repeat_interleave(rows, 0).repeat_interleave(cols, 1)
    return values.double() * spread[: values.shape[0], : values.shape[1]]


def reference(a, b, scale_a, scale_b, block_a, block_b):
    """Return A B^T of the dequantised operands in float64; `block_a` and `block_b` are (rows, cols) of one scale."""
    return dequantise(a, scale_a, *block_a) @ dequantise(b, scale_b, *block_b).T


def fp8_tensor(a, b, scale_a, scale_b, out=None, config=None):
    """Return A B^T for one scale of A and one of B, both (1, 1)."""
    return _by_descriptors(fp8_tensor_kernel, a, b, scale_a, scale_b, (1, 1), (1, 1), out, config or PLAIN)


def fp8_row(a, b, scale_a, scale_b, out=None, config=None):
    """Return A B^T for a scale per row of A, (M, 1), and per row of B, (N, 1)."""
    shapes = (len(a), 1), (len(b), 1)
    return _by_descriptors(fp8_row_kernel, a, b, scale_a, scale_b, *shapes, out, config or PLAIN)


def fp8_block(a, b, scale_a, scale_b, out=None, config=None):
    """Return A B^T for a scale per 1 x 128 of A, (M, ceil(K/128)), and 128 x 128 of B, (ceil(N/128), ceil(K/128))."""
    config = config or SCALED
    _require_blocks(config)
    return _by_descriptors(fp8_block_kernel, a, b, scale_a, scale_b, *_block_shapes(a, b), out, config)


def fp8_block_specialised(a, b, scale_a, scale_b, out=None, config=None):
    """Return what `fp8_block` returns, from programs of three warpgroups: one fetches, two multiply. For sm_90 only."""
    config = config or SPECIALISED
    _require_blocks(config)
    M, N, K, out = _operands(a, b, scale_a, scale_b, *_block_shapes(a, b), out)
    gemm.require_hopper(a, "fp8_block")
    grid = (min(gemm.tiles(M, N, config["BLOCK_M"], config["BLOCK_N"]), sm_count(a.device)),)
    descriptors = gemm.layout_descriptors(a, b, out, config)
    fp8_block_specialised_kernel[grid](*descriptors, scale_a, scale_b, M, N, K, **config, num_warps=4)
    return out


def _block_shapes(a, b):
    depth = triton.cdiv(a.shape[-1], BLOCK.value)
    return (len(a), depth), (triton.cdiv(len(b), BLOCK.value), depth)


def _require_blocks(config):
    if config["BLOCK_K"] != BLOCK.value or BLOCK.value % config["BLOCK_N"]:
        raise KernelError(f"a tile of {config} has several scales; choose BLOCK_K=128 and BLOCK_N up to 128")


def _operands(a, b, scale_a, scale_b, shape_a, shape_b, out):
    M, N, K = gemm.shape_of(a, b, dtypes=(FP8,))
    require(dtypes=(torch.float32,), scale_a=scale_a, scale_b=scale_b)
    for name, scale, shape in (("scale_a", scale_a, shape_a), ("scale_b", scale_b, shape_b)):
        if scale.shape != shape or scale.device != a.device:
            raise KernelError(f"{name} is {tuple(scale.shape)} on {scale.device}; it must be {shape} on {a.device}")
    out = output(out, torch.empty(0, dtype=torch.bfloat16, device=a.device), (M, N))
    gemm.require_aligned(a=a, b=b, out=out)
    return M, N, K, out


def _by_descriptors(kernel, a, b, scale_a, scale_b, shape_a, shape_b, out, config):
    M, N, K, out = _operands(a, b, scale_a, scale_b, shape_a, shape_b, out)
    gemm.require_tma(a)
    descriptors = gemm.descriptors(a, b, out, config)
    grid = (min(gemm.tiles(M, N, config["BLOCK_M"], config["BLOCK_N"]), sm_count(a.device)),)
    kernel[grid](*descriptors, scale_a, scale_b, M, N, K, **config)
    return out


# One program: every num_programs-th tile of C.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K bytes per tile unless L2 has them, writes 2 BLOCK_M BLOCK_N.
# This version: `persistent` of FP8: half the bytes and half the time per product; the scales go into the result.
@triton.jit
def fp8_tensor_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    scale = tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
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
        c_desc.store([m, n], (acc * scale).to(c_desc.dtype))  # HBM: written, the padding is left out


# One program: every num_programs-th tile of C.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) (K + 4) bytes per tile, mostly from L2, writes 2 BLOCK_M BLOCK_N.
# This version: a row's scale is the same for all of K, so it too goes into the result.
@triton.jit
def fp8_row_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, M, N, K,
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
        offs_m, offs_n = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
        scale_a = tl.load(scale_a_ptr + offs_m, mask=offs_m < M, other=0.0)  # (BLOCK_M,)
        scale_b = tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)  # (BLOCK_N,)
        acc = acc * scale_a[:, None] * scale_b[None, :]
        c_desc.store([m, n], acc.to(c_desc.dtype))  # HBM: written, the padding is left out


# One program: every num_programs-th tile of C.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K bytes and BLOCK_M K / 32 of scales, writes 2 BLOCK_M BLOCK_N.
# This version: scales change along K, so each block's sum leaves the Tensor Cores, is scaled, and is added in fp32.
@triton.jit
def fp8_block_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n, depth = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        first = tile // (GROUP * tiles_n) * GROUP
        place = tile % (GROUP * tiles_n)
        height = tl.minimum(tiles_m - first, GROUP)
        m = (first + place % height) * BLOCK_M
        n = place // height * BLOCK_N
        offs_m = m + tl.arange(0, BLOCK_M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for block in range(depth):
            a = a_desc.load([m, block * BLOCK_K])  # (BLOCK_M, BLOCK_K)
            b = b_desc.load([n, block * BLOCK_K])  # (BLOCK_N, BLOCK_K)
            scale_a = tl.load(scale_a_ptr + offs_m * depth + block, mask=offs_m < M, other=0.0)  # (BLOCK_M,)
            scale_b = tl.load(scale_b_ptr + n // BLOCK * depth + block)  # one for the tile
            part = tl.dot(a, b.T)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
            acc += part * (scale_a * scale_b)[:, None]  # (BLOCK_M, BLOCK_N)  2 BLOCK_M BLOCK_N FLOP of fp32 units
        c_desc.store([m, n], acc.to(c_desc.dtype))  # HBM: written, the padding is left out


@gluon.jit
def scales_at(scale_a_ptr, scale_b_ptr, rows, n, block, M, depth):
    """Return the scales of one block of K: one for each row of A, and one of B, of rows n to n + 127."""
    block = gl.minimum(block, depth - 1)  # the load that runs ahead of the last block has nothing to fetch
    scale_a = gl.load(scale_a_ptr + rows * depth + block, mask=rows < M, other=0.0)  # 8 blocks share a sector of 32 B
    return scale_a, gl.load(scale_b_ptr + n // BLOCK * depth + block)


@gluon.jit
def store_part(c_desc, m, n, acc, stage):
    """Write one part of a tile through shared memory that the store before has left."""
    bulk.store_wait(0)
    stage.store(acc.to(c_desc.dtype))
    hopper.fence_async_shared()
    bulk.async_copy_shared_to_global(c_desc, [m, n], stage)  # HBM: written


@gluon.jit
def consume_blocks(c_desc, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_stage, filled, drained, M, N, K, count,
                  HALF: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                  GROUP: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Multiply, scale and add one half of each tile's rows, two blocks of K at a time: one runs while one is added."""
    ROWS: gl.constexpr = BLOCK_M // 2
    COLS: gl.constexpr = BLOCK_N // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    stage = c_stage.index(HALF)
    depth = (K + BLOCK_K - 1) // BLOCK_K
    step = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        m, n = gemm.corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        rows = m + HALF * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        acc = zeros
        even_a, even_b = scales_at(scale_a_ptr, scale_b_ptr, rows, n, 0, M, depth)
        odd_a, odd_b = scales_at(scale_a_ptr, scale_b_ptr, rows, n, 1, M, depth)
        for block in range(0, depth, 2):
            slot, after = step % STAGES, (step + 1) % STAGES
            mbarrier.wait(filled.index(slot), step // STAGES & 1)
            a = a_ring.index(slot).slice(HALF * ROWS, ROWS)  # (ROWS, BLOCK_K)
            b = b_ring.index(slot).permute((1, 0))  # (BLOCK_K, BLOCK_N)
            even = hopper.warpgroup_mma(a, b, zeros, use_acc=False, is_async=True)  # 2 ROWS BLOCK_N BLOCK_K FLOP
            mbarrier.wait(filled.index(after), (step + 1) // STAGES & 1)
            a = a_ring.index(after).slice(HALF * ROWS, ROWS)
            b = b_ring.index(after).permute((1, 0))
            odd = hopper.warpgroup_mma(a, b, zeros, use_acc=False, is_async=True)  # 2 ROWS BLOCK_N BLOCK_K FLOP
            even_scale, odd_scale = even_a * even_b, odd_a * odd_b  # (ROWS,)
            # The next pair's scales are on their way while these products run.
            even_a, even_b = scales_at(scale_a_ptr, scale_b_ptr, rows, n, block + 2, M, depth)
            odd_a, odd_b = scales_at(scale_a_ptr, scale_b_ptr, rows, n, block + 3, M, depth)
            even = hopper.warpgroup_mma_wait(1, deps=[even])
            mbarrier.arrive(drained.index(slot))
            # While these four warps add, the Tensor Cores have their next product, and the other consumer's.
            acc += even * even_scale[:, None]  # (ROWS, BLOCK_N)
            odd = hopper.warpgroup_mma_wait(0, deps=[odd])
            mbarrier.arrive(drained.index(after))
            acc += odd * odd_scale[:, None]
            step += 2
        left, right = acc.to(c_desc.dtype).reshape([ROWS, 2, COLS]).permute((0, 2, 1)).split()
        store_part(c_desc, m + HALF * ROWS, n, left, stage)
        store_part(c_desc, m + HALF * ROWS, n + COLS, right, stage)
    bulk.store_wait(0)


# One program: every num_programs-th tile of C; four warps fetch, four multiply its upper half, four its lower half.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K bytes and BLOCK_M K / 32 of scales, writes 2 BLOCK_M BLOCK_N.
# This version: each consumer has two products in flight, and adds one while the next runs; the producer is `gemm`'s.
@gluon.jit
def fp8_block_specialised_kernel(a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, M, N, K,
                                 BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                                 GROUP: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    count = ((M + BLOCK_M - 1) // BLOCK_M) * ((N + BLOCK_N - 1) // BLOCK_N)
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    c_stage = gl.allocate_shared_memory(c_desc.dtype, [2, BLOCK_M // 2, BLOCK_N // 2], c_desc.layout)
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    drained = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(filled.index(slot), count=1)  # the producer's expect
        mbarrier.init(drained.index(slot), count=2)  # both consumers
    # The consumers take blocks of K in pairs; beyond K, TMA brings 0.
    pairs = (K + 2 * BLOCK_K - 1) // (2 * BLOCK_K)
    gl.warp_specialize([
        (gemm.produce, (a_desc, b_desc, a_ring, b_ring, filled, drained, M, N, pairs * 2 * BLOCK_K, count,
                        BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume_blocks, (c_desc, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, 0,
                          BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume_blocks, (c_desc, scale_a_ptr, scale_b_ptr, a_ring, b_ring, c_stage, filled, drained, M, N, K, count, 1,
                          BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
    ], [4, 4], [240, 240])  # fmt: skip
