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
SPECIALISED = {  # by the columns of a tile
    128: dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, GROUP=8, STAGES=6),
    256: dict(BLOCK_M=128, BLOCK_N=256, BLOCK_K=128, GROUP=16, STAGES=4),
}


# `numerics.quantize` asks whether all numbers are finite, and the CPU must wait for the answer; this one is timed.
def quantise(x, rows, cols):
    """Return `x` as e4m3 and its fp32 scales, one for each block of rows x cols: the largest element becomes 448.

    Where a row has several scales of its own, they are stored column after column, `pitch` numbers apart, so that those
    of a tile's rows lie side by side.

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
    if rows == 1 and wide > 1:
        scales = torch.nn.functional.pad(scales.t(), (0, pitch(R) - R)).contiguous().t()[:R]  # strides (1, pitch)
    return values.contiguous().to(FP8), scales


def pitch(M):
    """Return how many numbers apart two columns of M scales start: TMA fetches from whole multiples of 16 bytes.

    >>> [pitch(M) for M in (1, 333, 4096)]
    [4, 336, 4096]
    """
    return triton.cdiv(M, 4) * 4


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
    """Return A B^T for a scale per 1 x 128 of A, (M, ceil(K/128)), and 128 x 128 of B, (ceil(N/128), ceil(K/128)).

    The scales of A are stored as `quantise` returns them, column after column.
    """
    config = config or SCALED
    _require_blocks(config, 1)
    config = config | dict(pitch=pitch(len(a)))
    return _by_descriptors(fp8_block_kernel, a, b, scale_a, scale_b, *_block_shapes(a, b), out, config)


def fp8_block_specialised(a, b, scale_a, scale_b, out=None, config=None):
    """Return what `fp8_block` returns, from programs of three warpgroups: one fetches, two multiply. For sm_90 only."""
    M, N, K, out = _operands(a, b, scale_a, scale_b, *_block_shapes(a, b), out)
    sms = sm_count(a.device)
    config = config or SPECIALISED[tile_width(M, N, sms)]
    _require_blocks(config, 2)
    if off := scale_a.data_ptr() % 16:
        raise KernelError(f"scale_a starts {off} bytes off a multiple of 16: take it from quantise(a, 1, 128)")
    gemm.require_hopper(a, "fp8_block")
    grid = (min(gemm.tiles(M, N, config["BLOCK_M"], config["BLOCK_N"]), sms),)
    BLOCK_M, BLOCK_N, BLOCK_K = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    # One request brings a whole block of B: two smaller ones were slower. C leaves in quarters of a consumer's part.
    boxes = (a, [BLOCK_M, BLOCK_K]), (b, [BLOCK_N, BLOCK_K]), (out, [BLOCK_M // 2, BLOCK_N // 4])
    descriptors = [
        gemm.LayoutDescriptor.from_tensor(x, box, gl.NVMMASharedLayout.get_default_for(box, gemm.ELEMENTS[x.dtype]))
        for x, box in boxes
    ]
    box = [BLOCK_M]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.float32)
    # In one dimension, so that the scales of a tile's rows are a vector in shared memory, too. Of the last column's
    # padding, if it has none, TMA reads the rest of 16 bytes, which no row of C takes.
    scales = gemm.LayoutDescriptor(scale_a, [scale_a.shape[1] * pitch(M)], [1], box, layout)
    fp8_block_specialised_kernel[grid](*descriptors, scales, scale_b, M, N, K, pitch(M), **config, num_warps=4)
    return out


def tile_width(M, N, sms):
    """Return the columns of a tile: 256, or 128 where the last wave of wide ones would leave too many SMs idle.

    A tile of half the width takes about 0.6 of the time: it reads all its rows of A for half the products.

    >>> [tile_width(M, 22016, sms=132) for M in (16, 256, 4096)]
    [256, 128, 256]
    """
    narrow, wide = (triton.cdiv(gemm.tiles(M, N, 128, width), sms) for width in (128, 256))
    return 128 if 0.6 * narrow < wide else 256


def _block_shapes(a, b):
    depth = triton.cdiv(a.shape[-1], BLOCK.value)
    return (len(a), depth), (triton.cdiv(len(b), BLOCK.value), depth)


def _require_blocks(config, parts):
    if config["BLOCK_K"] != BLOCK.value or BLOCK.value * parts % config["BLOCK_N"]:
        most = f"BLOCK_N up to {BLOCK.value * parts}"
        raise KernelError(f"a tile of {config} has more scales than the kernel takes; choose BLOCK_K=128 and {most}")


def _operands(a, b, scale_a, scale_b, shape_a, shape_b, out):
    M, N, K = gemm.shape_of(a, b, dtypes=(FP8,))
    by_column = isinstance(scale_a, torch.Tensor) and scale_a.dim() == 2 and scale_a.shape[1] > 1
    # Scales in columns are not contiguous; one number stands for them here, and how they lie is checked below.
    require(dtypes=(torch.float32,), scale_a=scale_a[:1, :1] if by_column else scale_a, scale_b=scale_b)
    for name, scale, shape in (("scale_a", scale_a, shape_a), ("scale_b", scale_b, shape_b)):
        if scale.shape != shape or scale.device != a.device:
            raise KernelError(f"{name} is {tuple(scale.shape)} on {scale.device}; it must be {shape} on {a.device}")
    if by_column and ((M > 1 and scale_a.stride(0) != 1) or scale_a.stride(1) != pitch(M)):
        raise KernelError(
            f"scale_a has strides {scale_a.stride()}; its columns must lie one after the other, "
            f"each M rounded up to a multiple of 4, here {pitch(M)}: take them from quantise(a, 1, 128)"
        )
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
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, M, N, K, pitch,
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
            scale_a = tl.load(scale_a_ptr + block * pitch + offs_m, mask=offs_m < M, other=0.0)  # (BLOCK_M,)
            scale_b = tl.load(scale_b_ptr + n // BLOCK * depth + block)  # one for the tile
            part = tl.dot(a, b.T)  # 2 BLOCK_M BLOCK_N BLOCK_K FLOP
            acc += part * (scale_a * scale_b)[:, None]  # (BLOCK_M, BLOCK_N)  2 BLOCK_M BLOCK_N FLOP of fp32 units
        c_desc.store([m, n], acc.to(c_desc.dtype))  # HBM: written, the padding is left out


@gluon.jit
def produce_scaled(a_desc, b_desc, scale_desc, a_ring, b_ring, scale_ring, filled, drained, M, N, K, pitch, count,
                   BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
                   STAGES: gl.constexpr):  # fmt: skip
    """Fill the ring as `gemm.produce` does, each slot with the scales of its rows of A, too."""
    BYTES: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes + scale_desc.block_type.nbytes
    step = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        m, n = gemm.corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        for block in range((K + BLOCK_K - 1) // BLOCK_K):
            slot = step % STAGES
            full = filled.index(slot)
            mbarrier.wait(drained.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(full, BYTES)
            bulk.async_copy_global_to_shared(a_desc, [m, block * BLOCK_K], full, a_ring.index(slot))
            bulk.async_copy_global_to_shared(b_desc, [n, block * BLOCK_K], full, b_ring.index(slot))
            # 4 BLOCK_M bytes side by side. Beyond M it may bring the next column's, for rows that are never stored.
            bulk.async_copy_global_to_shared(scale_desc, [block * pitch + m], full, scale_ring.index(slot))
            step += 1


@gluon.jit
def store_rows(c_desc, m, n, acc, places, PART: gl.constexpr):
    """Write (ROWS, COLS) of fp32 as two boxes, each through a place of its own: the second is filled meanwhile."""
    halves = acc.to(c_desc.dtype).reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute((0, 2, 1)).split()
    for half in gl.static_range(2):
        bulk.store_wait(1)  # the last but one store, which was from this place, has left it
        place = places[half].index(PART)
        place.store(halves[half])
        hopper.fence_async_shared()
        bulk.async_copy_shared_to_global(c_desc, [m, n + half * (acc.shape[1] // 2)], place)  # HBM: written


@gluon.jit
def consume_scaled(c_desc, scale_b_ptr, a_ring, b_ring, scale_ring, places, filled, drained, M, N, K, count,
                   PART: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                   GROUP: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Multiply, scale and add half of each tile's columns, the upper and then the lower rows of each block of K."""
    ROWS: gl.constexpr = BLOCK_M // 2
    COLS: gl.constexpr = BLOCK_N // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 32])
    line: gl.constexpr = gl.SliceLayout(1, layout)
    depth = (K + BLOCK_K - 1) // BLOCK_K
    step = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        m, first = gemm.corner(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        n = first + PART * COLS
        zeros = gl.zeros([ROWS, COLS], gl.float32, layout)
        upper, lower = zeros, zeros
        scale_b_row = scale_b_ptr + gl.minimum(n, N - 1) // BLOCK * depth  # no column beyond N is stored
        scale_b = gl.load(scale_b_row)
        for block in range(depth):
            slot = step % STAGES
            mbarrier.wait(filled.index(slot), step // STAGES & 1)
            a, scale_a = a_ring.index(slot), scale_ring.index(slot)
            b = b_ring.index(slot).slice(PART * COLS, COLS).permute((1, 0))  # (BLOCK_K, COLS)
            # 2 ROWS COLS BLOCK_K FLOP each. One set of registers for both leaves room for 128 columns.
            part = hopper.warpgroup_mma(a.slice(0, ROWS), b, zeros, use_acc=False, is_async=True)
            upper_scale = scale_a.slice(0, ROWS).load(line) * scale_b  # (ROWS,)
            lower_scale = scale_a.slice(ROWS, ROWS).load(line) * scale_b
            scale_b = gl.load(scale_b_row + gl.minimum(block + 1, depth - 1))  # on its way while these products run
            part = hopper.warpgroup_mma_wait(0, deps=[part])
            # ROWS COLS multiply-adds of the fp32 units, a quarter of a product's time, and the other consumer's runs.
            upper += part * upper_scale[:, None]
            part = hopper.warpgroup_mma(a.slice(ROWS, ROWS), b, zeros, use_acc=False, is_async=True)
            part = hopper.warpgroup_mma_wait(0, deps=[part])
            mbarrier.arrive(drained.index(slot))
            lower += part * lower_scale[:, None]
            step += 1
        store_rows(c_desc, m, n, upper, places, PART)
        store_rows(c_desc, m + ROWS, n, lower, places, PART)
    bulk.store_wait(0)


# One program: every num_programs-th tile of C; four warps fetch, four multiply its left half, four its right half.
# Grid: one program per SM, at most one per tile.
# HBM traffic per program: reads (BLOCK_M + BLOCK_N) K bytes and BLOCK_M K / 32 of scales, writes 2 BLOCK_M BLOCK_N.
# This version: one consumer adds while the other's product runs; TMA brings the scales of A with the operands.
@gluon.jit
def fp8_block_specialised_kernel(a_desc, b_desc, c_desc, scale_desc, scale_b_ptr, M, N, K, pitch,
                                 BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                                 GROUP: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    count = ((M + BLOCK_M - 1) // BLOCK_M) * ((N + BLOCK_N - 1) // BLOCK_N)
    a_ring, b_ring, left, filled, drained = gemm.make_ring(a_desc, b_desc, c_desc, BLOCK_N, STAGES, 2)
    places = left, gl.allocate_shared_memory(c_desc.dtype, left.shape, left.layout)
    scale_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], scale_desc.layout)
    gl.warp_specialize([
        (produce_scaled, (a_desc, b_desc, scale_desc, a_ring, b_ring, scale_ring, filled, drained, M, N, K, pitch,
                          count, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume_scaled, (c_desc, scale_b_ptr, a_ring, b_ring, scale_ring, places, filled, drained, M, N, K, count, 0,
                          BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
        (consume_scaled, (c_desc, scale_b_ptr, a_ring, b_ring, scale_ring, places, filled, drained, M, N, K, count, 1,
                          BLOCK_M, BLOCK_N, BLOCK_K, GROUP, STAGES)),
    ], [4, 4], [216, 216])  # fmt: skip
