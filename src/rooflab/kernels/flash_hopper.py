"""FlashAttention-3 for sm_90: attention whose products, exponentials and copies run at the same time.

Q is (B, h, L, d), K and V are (B, h_kv, L, d); h is a multiple of h_kv. `fa3` takes bf16 and fp16, `fa3_fp8` e4m3.
"""

import math

from . import gemm
from ._triton import INTERPRETED, KernelError, gl, gluon, hopper, sm_count, torch, triton

LayoutDescriptor = gluon.nvidia.hopper.TensorDescriptor
mbarrier, bulk = hopper.mbarrier, hopper.tma

DTYPES = (torch.bfloat16, torch.float16)
FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
HEAD_DIMS = (64, 128)
ROWS = gl.constexpr(64)  # of Q for a consumer: those of one wgmma
P_SHIFT = gl.constexpr(8)  # P of FP8 is stored times 2**8: what is above 2**-14 stays a normal number of e4m3
L2_BYTES = 32 * 2**20  # of K and V that programs that run together should share

# CONSUMERS warpgroups have 64 rows of Q each; the ring has SLOTS places for tiles of BLOCK_N keys, of K or V.
# OVERLAP: a warpgroup's own softmax runs under its next product. TAIL: keys at a time where a mask is needed.
# SCHEDULE: "grid" has a program per tile; one per SM takes every so many-th ("stride"), or the next as it is "free".
THREE = dict(CONSUMERS=3, BLOCK_N=128, SLOTS=4, OVERLAP=False, TAIL=128, SCHEDULE="free")
TWO = dict(CONSUMERS=2, BLOCK_N=128, SLOTS=5, OVERLAP=True, TAIL=128, SCHEDULE="free")
FP8_THREE = dict(CONSUMERS=3, BLOCK_N=128, SLOTS=8, OVERLAP=False, TAIL=128, SCHEDULE="free")
# By (head dimension, causal): the shortest L that a config is for, longest first.
CONFIGS = {
    (128, False): [(0, THREE)],
    (128, True): [(8192, THREE), (0, dict(TWO, TAIL=64))],
    (64, False): [(0, dict(THREE, SLOTS=8))],
    (64, True): [(0, dict(THREE, SLOTS=8, TAIL=64))],
}
REGISTERS = {2: 240, 3: 160}  # of a consumer's thread; the producer keeps 24 or 32
TEMPLATES = {}  # (shape, strides, dtype, block): what TMA must know of such a tensor, without its address
COUNTERS = {}  # device: the next tile, for "free"


# Schedule ------------------------------------------------------------------------------------------------------------


def tile_at(tile, heads, blocks, group, causal):
    """Return the head and the block of rows of a tile, by the kernel's own function: long rows first in each group.

    >>> [tile_at(tile, 3, 2, 2, True) for tile in range(6)]
    [(0, 1), (1, 1), (0, 0), (1, 0), (2, 1), (2, 0)]
    """
    return place_of.fn(tile, heads, blocks, group, causal)


def spans(block, consumer, L, causal, config):
    """Return the tiles of keys that a block needs, and of them those a consumer takes whole and those with a mask.

    >>> spans(1, 0, 512, True, THREE), spans(1, 2, 512, True, THREE), spans(0, 0, 200, False, THREE)
    ((3, 1, 1), (3, 2, 1), (2, 1, 1))
    """
    row = (block * config["CONSUMERS"] + consumer) * ROWS.value
    needed = needed_of.fn(block, L, config["CONSUMERS"], config["BLOCK_N"], causal)
    return needed, *span_of.fn(row, L, config["BLOCK_N"], causal)


def efficiency(heads, L, causal, config, programs=132, group=None):
    """Return the useful share of all programs' time, if a product of 64 x 64 scores takes one unit of it.

    What is masked or beyond L counts as lost, and so does the time of programs that have nothing left to do.

    >>> [round(efficiency(16, 16384, causal, THREE), 3) for causal in (False, True)]
    [0.94, 0.974]
    >>> [round(efficiency(512, 512, True, dict(TWO, TAIL=tail)), 3) for tail in (128, 64)]
    [0.797, 0.882]
    """
    blocks = triton.cdiv(L, ROWS.value * config["CONSUMERS"])
    group = group or group_of(L, 128, causal)
    costs = [_cost(tile_at(tile, heads, blocks, group, causal)[1], L, causal, config) for tile in range(heads * blocks)]
    if config["SCHEDULE"] == "stride":
        loads = [sum(costs[program::programs]) for program in range(programs)]
    else:
        loads = [0] * programs
        for cost in costs:
            loads[loads.index(min(loads))] += cost
    useful = heads * L * (L + 1) / 2 if causal else heads * L * L
    return useful / ROWS.value**2 / (max(loads) * programs)


def _cost(block, L, causal, config):
    total, tail = 0, config["TAIL"]
    for consumer in range(config["CONSUMERS"]):
        row = (block * config["CONSUMERS"] + consumer) * ROWS.value
        _, whole, masked = spans(block, consumer, L, causal, config)
        seen = (min(row + ROWS.value, L) if causal else L) - whole * config["BLOCK_N"]  # keys in the tile with a mask
        total += whole * config["BLOCK_N"] + masked * triton.cdiv(seen, tail) * tail
    return total / ROWS.value


def group_of(L, d, causal):
    """Return how many heads' tiles are mixed: causal tiles are of all lengths, but K and V should stay in L2.

    >>> group_of(512, 128, True), group_of(16384, 128, True), group_of(16384, 128, False)
    (128, 4, 1)
    """
    return max(1, L2_BYTES // (4 * L * d)) if causal else 1


def config_for(L, d, causal):
    """Return the config that `fa3` takes if none is given.

    >>> config_for(512, 128, True)["CONSUMERS"], config_for(16384, 128, True)["CONSUMERS"]
    (2, 3)
    """
    return next(config for shortest, config in CONFIGS[d, bool(causal)] if shortest <= L)


# FP8 -----------------------------------------------------------------------------------------------------------------


def quantise_heads(x):
    """Return `x` (B, h, L, d) as e4m3, and one fp32 scale for each (batch, head): the largest element becomes 448.

    >>> values, scales = quantise_heads(torch.tensor([[[[1.0, -2.0]], [[0.5, 4.0]]]]))
    >>> values.float().flatten().tolist(), (scales * 448).tolist()
    ([224.0, -448.0, 56.0, 448.0], [[2.0, 4.0]])
    """
    scales = x.abs().amax(dim=(2, 3)).float() / LARGEST
    scales = torch.where(scales == 0, 1.0, scales)
    return (x.float() / scales[:, :, None, None]).to(FP8), scales


def key_order(count):
    """Return which key stands at each place of V^T: a thread's 4 products of 16 become 4 neighbours, as wgmma has P.

    >>> key_order(16).tolist()
    [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
    """
    return torch.arange(count).view(-1, 2, 4, 2).transpose(1, 2).flatten()


def fp8_layout_of_v(v):
    """Return V^T (B, h_kv, d, L) for `fa3_fp8`, with keys in the order of P's registers and L padded to 16 with zeros.

    It reads and writes each byte of V once: a copy, with d and L exchanged.

    >>> fp8_layout_of_v(torch.zeros(1, 2, 20, 128, dtype=torch.float8_e4m3fn)).shape
    torch.Size([1, 2, 128, 32])
    """
    B, h, L, d = v.shape
    v = v.view(torch.uint8)
    if L % 16:
        v = torch.nn.functional.pad(v, (0, 0, 0, -L % 16))
    v = v.view(B, h, -1, 2, 4, 2, d).permute(0, 1, 6, 2, 4, 3, 5)  # (B, h, d, L / 16, 4, 2, 2)
    return v.reshape(B, h, d, -1).view(FP8)


# Versions ------------------------------------------------------------------------------------------------------------


def reference(q, k, v, causal):
    """Return softmax(Q K^T / sqrt(d)) V in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf)
    return torch.softmax(s, dim=-1) @ v


def fa3(q, k, v, causal, out=None, lse=None, config=None):
    """Return attention; `lse` (B, h, L), fp32, takes the natural logarithm of each row's sum. For sm_90 only."""
    B, h, L, d = _shape(q, k, v, DTYPES, HEAD_DIMS)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    return _launch(q, k, v, out, lse, None, None, None, causal, config or config_for(L, d, causal))


def fa3_fp8(q, k, v_t, scale_q, scale_k, scale_v, causal, out=None, lse=None, config=None):
    """Return attention in bf16 of e4m3 operands, V^T from `fp8_layout_of_v`, with scales (B, h) or (B, h_kv)."""
    B, h, L, d = _shape(q, k, None, (FP8,), (128,))
    h_kv, padded = k.shape[1], L + -L % 16
    _require_like(v_t, "v_t", (B, h_kv, d, padded), FP8, q.device, otherwise="make it with fp8_layout_of_v")
    for name, scale, heads in (("scale_q", scale_q, h), ("scale_k", scale_k, h_kv), ("scale_v", scale_v, h_kv)):
        _require_like(scale, name, (B, heads), torch.float32, q.device)
        if not scale.is_contiguous():
            raise KernelError(f"{name} has strides {scale.stride()}; pass {name}.contiguous()")
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device) if out is None else out
    return _launch(q, k, v_t, out, lse, scale_q, scale_k, scale_v, causal, config or FP8_THREE)


def _launch(q, k, v, out, lse, scale_q, scale_k, scale_v, causal, config):
    B, h, L, d = q.shape
    _require_hopper(q)
    _require_like(out, "out", q.shape, torch.bfloat16 if q.dtype == FP8 else q.dtype, q.device)
    if lse is not None:
        _require_like(lse, "lse", (B, h, L), torch.float32, q.device)
    for name, tensor in (("out", out), ("lse", lse)):
        if tensor is not None and not tensor.is_contiguous():
            raise KernelError(f"{name} has strides {tensor.stride()}; pass a contiguous one")
    config = dict(config)
    consumers, block_n, schedule = (config[name] for name in ("CONSUMERS", "BLOCK_N", "SCHEDULE"))
    if not causal and L % block_n == 0:
        config["TAIL"] = 0  # no tile needs a mask
    v_block = (d, block_n) if q.dtype == FP8 else (block_n, d)
    blocks = (ROWS.value, d), (block_n, d), v_block, (ROWS.value, d)
    names = ("q", "k", "v", "out")
    descriptors = [_describe(*each) for each in zip(names, (q, k, v, out.view(1, B * h, L, d)), blocks, strict=True)]
    tiles = B * h * triton.cdiv(L, ROWS.value * consumers)
    grid = (tiles if schedule == "grid" else min(tiles, sm_count(q.device)),)
    counter = counter_of(q.device) if schedule == "free" else q
    scales = (scale_q, scale_k, scale_v) if q.dtype == FP8 else (q, q, q)  # q: not read
    fa3_kernel[grid](
        *descriptors, out if lse is None else lse, *scales, counter, B * h, h, h // k.shape[1], L,
        group_of(L, d, causal), d**-0.5 * math.log2(math.e), bool(causal), lse is not None, q.dtype == FP8,
        REGISTERS[consumers], **config, num_warps=4,
    )  # fmt: skip
    return out


def _describe(name, tensor, block):
    """Return a descriptor of the tensor; all but its address is kept from call to call, so no tensor is kept alive."""
    if tensor.data_ptr() % 16:
        raise KernelError(f"{name} starts {tensor.data_ptr() % 16} bytes off a multiple of 16: pass {name}.clone()")
    key = tensor.shape, tensor.stride(), tensor.dtype, block
    if key not in TEMPLATES:
        *strides, last = tensor.stride()
        if last != 1 or any(stride * tensor.element_size() % 16 or stride <= 0 for stride in strides):
            raise KernelError(
                f"{name} has strides {tensor.stride()}; TMA needs a last one of 1, and rows that start at multiples of "
                f"16 bytes: pass {name}.contiguous()"
            )
        box = [1, 1, *block]
        layout = gl.NVMMASharedLayout.get_default_for(box, gemm.ELEMENTS[tensor.dtype])
        TEMPLATES[key] = vars(LayoutDescriptor.from_tensor(tensor, box, layout)) | {"base": None}
    descriptor = LayoutDescriptor.__new__(LayoutDescriptor)  # checked once, above
    vars(descriptor).update(TEMPLATES[key], base=tensor)
    return descriptor


def counter_of(device):
    """Return the device's counter of tiles; a kernel leaves it at 0. Calls with "free" must not overlap in time."""
    if device not in COUNTERS:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise KernelError("fa3 has no counter on this GPU yet; call it once before the capture")
        COUNTERS[device] = torch.zeros(1, dtype=torch.int32, device=device)
    return COUNTERS[device]


def _shape(q, k, v, dtypes, head_dims):
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4:
            raise KernelError(f"{name} must be a torch.Tensor of shape (B, heads, L, d)")
        if tensor.dtype not in dtypes:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise KernelError(f"{name} is {tensor.dtype}; convert it to one of {names}, or use flash.fa2")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise KernelError(
                f"{name} is {tensor.dtype} on {tensor.device} but q is {q.dtype} on {q.device}; convert one with .to()"
            )
    B, h, L, d = q.shape
    if d not in head_dims:
        other = "fa3 in 16 bits" if d in HEAD_DIMS else "flash.fa2"
        raise KernelError(f"head dimension {d}; this kernel has {', '.join(map(str, head_dims))}: use {other}")
    if q.numel() == 0:
        raise KernelError(f"q has shape {tuple(q.shape)}; give at least one element")
    if v is not None and v.shape != k.shape:
        raise KernelError(f"v has shape {tuple(v.shape)}; it needs k's, {tuple(k.shape)}")
    h_kv = k.shape[1]
    if k.shape != (B, h_kv, L, d) or not h_kv or h % h_kv:
        raise KernelError(
            f"k has shape {tuple(k.shape)}; with q of {tuple(q.shape)} it must be (B, a divisor of {h}, L, d)"
        )
    return B, h, L, d


def _require_like(tensor, name, shape, dtype, device, otherwise="give one that is"):
    got = tuple(tensor.shape), tensor.dtype, tensor.device
    if got != (tuple(shape), dtype, device):
        raise KernelError(f"{name} is {got}; it must be {(tuple(shape), dtype, device)}: {otherwise}")


def _require_hopper(tensor):
    if INTERPRETED:
        raise KernelError("Gluon has no interpreter; to run without a GPU use flash.fa2")
    major, minor = gemm._capability(tensor)
    if major != 9:
        raise KernelError(f"wgmma exists on sm_90 only; this card is sm_{major}{minor}: use flash.fa2")


# Kernels -------------------------------------------------------------------------------------------------------------


@gluon.jit
def place_of(tile, heads, blocks, group, CAUSAL):
    """Return a tile's head and block of rows; if causal, first the last blocks of a group of heads, then those before.

    Long tiles come first, so that what is left at the end is short.
    """
    head, block = tile // blocks, tile % blocks
    if CAUSAL:
        first = tile // (group * blocks) * group
        place = tile % (group * blocks)
        width = min(heads - first, group)
        head, block = first + place % width, blocks - 1 - place // width
    return head, block


@gluon.jit
def needed_of(block, L, CONSUMERS, BLOCK_N, CAUSAL):
    """Return how many tiles of keys the rows of a block see."""
    end = L
    if CAUSAL:
        end = min((block + 1) * CONSUMERS * 64, L)
    return (end + BLOCK_N - 1) // BLOCK_N


@gluon.jit
def span_of(row, L, BLOCK_N, CAUSAL):
    """Return how many tiles of keys 64 rows see whole, and how many, 0 or 1, in part."""
    whole, masked = L // BLOCK_N, (L % BLOCK_N + BLOCK_N - 1) // BLOCK_N
    if CAUSAL:
        whole, masked = row // BLOCK_N, 1
    if row >= L:
        whole, masked = 0, 0
    return whole, masked


@gluon.jit
def k_place(i, needed, OVERLAP: gl.constexpr):
    """Return the place of K's tile i in the order of loads: K0 V0 K1 V1 ..., or with overlap K0 K1 V0 K2 V1 ..."""
    if OVERLAP:
        return max(2 * i - 1, 0)
    return 2 * i


@gluon.jit
def v_place(i, needed, OVERLAP: gl.constexpr):
    """Return the place of V's tile i in the order of loads."""
    if OVERLAP:
        return min(2 * i + 2, 2 * needed - 1)
    return 2 * i + 1


@gluon.jit
def acquire(ring, step):
    """Wait for the tile of a step, and return it as a matrix."""
    slots, filled, drained, SLOTS = ring
    mbarrier.wait(filled.index(step % SLOTS), step // SLOTS & 1)
    tile = slots.index(step % SLOTS)
    return tile.reshape([tile.shape[2], tile.shape[3]])


@gluon.jit
def release(ring, step):
    """Say that a step's tile is no longer needed by this consumer."""
    slots, filled, drained, SLOTS = ring
    mbarrier.arrive(drained.index(step % SLOTS))


@gluon.jit
def rows_like(x, tile):
    """Return numbers by row in the layout that a tile's rows have; they are in these registers already."""
    return gl.convert_layout(x, gl.SliceLayout(1, tile.type.layout), assert_trivial=True)


@gluon.jit
def softmax(s, m, sums, c, shift, row, key, L, MASK: gl.constexpr, CAUSAL: gl.constexpr):
    """Return exp of a tile of scores, the new largest score and sum of each row, and what earlier sums shrink by."""
    if MASK:
        keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        if CAUSAL:
            rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, s.type.layout))
            s = gl.where(rows[:, None] >= keys[None, :], s, -float("inf"))
        else:
            s = gl.where((keys < L)[None, :], s, -float("inf"))
    m, sums = rows_like(m, s), rows_like(sums, s)
    # A row's first tile holds key 0, which it sees: the new m is finite.
    m_new = gl.maximum(m, gl.max(s, 1))
    p = gl.exp2(s * c - (m_new * c - shift)[:, None])  # (ROWS, N)
    alpha = gl.exp2((m - m_new) * c)
    return p, m_new, sums * alpha + gl.sum(p, 1), alpha


@gluon.jit
def operand(p, DTYPE: gl.constexpr):
    """Return P as wgmma takes it from registers: each thread keeps what it has."""
    N: gl.constexpr = p.shape[1]
    BITS: gl.constexpr = DTYPE.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 256 // BITS])
    if BITS == 8:
        # Four neighbours in a row are one register of e4m3, but a thread has two times two: V^T has its keys as here.
        p = p.reshape([ROWS, N // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, N])
    return gl.convert_layout(p.to(DTYPE), gl.DotOperandLayout(0, LAYOUT, 32 // BITS), assert_trivial=True)


@gluon.jit
def attend(q, ring, k_step, v_step, o, m, sums, c, shift, row, key, L, PART: gl.constexpr, TAIL: gl.constexpr,
           MASK: gl.constexpr, CAUSAL: gl.constexpr, FP8: gl.constexpr):  # fmt: skip
    """Add the PART-th TAIL keys of a tile to O: scores, softmax, product with V, one after the other."""
    k = acquire(ring, k_step)
    BLOCK_N: gl.constexpr = k.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TAIL, 32 if FP8 else 16])
    zeros = gl.zeros([ROWS, TAIL], gl.float32, LAYOUT)
    if TAIL < BLOCK_N:
        k = k.slice(PART * TAIL, TAIL)
    s = hopper.warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)  # 2 ROWS TAIL d FLOP
    s = hopper.warpgroup_mma_wait(0, deps=[s])
    if TAIL == BLOCK_N:
        release(ring, k_step)
    # The Tensor Cores have the other consumers' products meanwhile.
    p, m, sums, alpha = softmax(s, m, sums, c, shift, row, key + PART * TAIL, L, MASK, CAUSAL)
    o = o * rows_like(alpha, o)[:, None]
    p = operand(p, q.dtype)
    v = acquire(ring, v_step)
    if FP8:
        v = v.permute((1, 0))  # (BLOCK_N, d): it came as V^T
    if TAIL < BLOCK_N:
        v = v.slice(PART * TAIL, TAIL)
    o = hopper.warpgroup_mma(p, v, o, is_async=True)  # 2 ROWS TAIL d FLOP
    o = hopper.warpgroup_mma_wait(0, deps=[o])
    if TAIL == BLOCK_N:
        release(ring, v_step)
    return o, rows_like(m, o), rows_like(sums, o)


@gluon.jit
def free_q(q_drained, turn, ME: gl.constexpr, CONSUMERS: gl.constexpr):
    """Hand the previous turn's place of Q back; its O was written there, and is stored by now."""
    bulk.store_wait(0)
    mbarrier.arrive(q_drained.index((turn + 1) % 2 * CONSUMERS + ME), pred=turn > 0)


@gluon.jit
def attend_overlapped(q, ring, step, whole, needed, o, m, sums, c, shift, L, BLOCK_N: gl.constexpr,
                      q_drained, turn, ME: gl.constexpr, CONSUMERS: gl.constexpr):  # fmt: skip
    """Add `whole` tiles of keys to O; the softmax of each runs under the product of the one before with V."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
    k = acquire(ring, step)
    s = hopper.warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = hopper.warpgroup_mma_wait(0, deps=[s])
    release(ring, step)
    free_q(q_drained, turn, ME, CONSUMERS)
    p, m, sums, _ = softmax(s, m, sums, c, shift, 0, 0, L, False, False)
    p = operand(p, q.dtype)
    for i in range(1, whole):
        k_step, v_step = step + k_place(i, needed, True), step + v_place(i - 1, needed, True)
        k = acquire(ring, k_step)
        s = hopper.warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)  # 2 ROWS BLOCK_N d FLOP
        v = acquire(ring, v_step)
        o = hopper.warpgroup_mma(p, v, o, is_async=True)  # 2 ROWS BLOCK_N d FLOP
        s = hopper.warpgroup_mma_wait(1, deps=[s])
        release(ring, k_step)
        p_next, m, sums, alpha = softmax(s, m, sums, c, shift, 0, 0, L, False, False)
        o = hopper.warpgroup_mma_wait(0, deps=[o])
        release(ring, v_step)
        o = o * rows_like(alpha, o)[:, None]
        p = operand(p_next, q.dtype)
    v_step = step + v_place(whole - 1, needed, True)
    v = acquire(ring, v_step)
    o = hopper.warpgroup_mma(p, v, o, is_async=True)
    o = hopper.warpgroup_mma_wait(0, deps=[o])
    release(ring, v_step)
    return o, rows_like(m, o), rows_like(sums, o)


@gluon.jit
def consume(o_desc, lse_ptr, scales, q_ring, o_slots, ring, tile, turn, step, sizes, c, mode, ME: gl.constexpr):
    """Attend with this consumer's 64 rows of a tile, and return the next step."""
    heads, h, sharing, L, group = sizes
    q_slots, q_filled, q_drained = q_ring
    CONSUMERS: gl.constexpr = mode[0]
    BLOCK_N: gl.constexpr = mode[1]
    TAIL: gl.constexpr = mode[2]
    CAUSAL: gl.constexpr = mode[3]
    LSE: gl.constexpr = mode[4]
    FP8: gl.constexpr = mode[5]
    OVERLAP: gl.constexpr = mode[6]
    D: gl.constexpr = o_desc.block_shape[3]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32 if FP8 else 16])
    head, block = place_of(tile, heads, (L + ROWS * CONSUMERS - 1) // (ROWS * CONSUMERS), group, CAUSAL)
    row = (block * CONSUMERS + ME) * ROWS
    needed = needed_of(block, L, CONSUMERS, BLOCK_N, CAUSAL)
    whole, masked = span_of(row, L, BLOCK_N, CAUSAL)
    shift, scale_v = 0.0, 1.0
    if FP8:
        scale_q_ptr, scale_k_ptr, scale_v_ptr = scales
        kv = head // h * (h // sharing) + head % h // sharing
        c = c * gl.load(scale_q_ptr + head) * gl.load(scale_k_ptr + kv)
        scale_v = gl.load(scale_v_ptr + kv)
        shift = 8.0
    o = gl.zeros([ROWS, D], gl.float32, LAYOUT)
    m = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, LAYOUT))
    sums = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, LAYOUT))
    place = turn % 2 * CONSUMERS + ME
    mbarrier.wait(q_filled.index(place), turn // 2 & 1)
    q = q_slots.index(place).reshape([ROWS, D])
    if OVERLAP:
        if whole > 0:
            o, m, sums = attend_overlapped(q, ring, step, whole, needed, o, m, sums, c, shift, L, BLOCK_N,
                                           q_drained, turn, ME, CONSUMERS)  # fmt: skip
    else:
        for i in range(whole):
            k_step, v_step = step + k_place(i, needed, False), step + v_place(i, needed, False)
            o, m, sums = attend(q, ring, k_step, v_step, o, m, sums, c, shift, row, i * BLOCK_N, L, 0, BLOCK_N,
                                False, CAUSAL, FP8)  # fmt: skip
            if i == 0:
                free_q(q_drained, turn, ME, CONSUMERS)
    if TAIL > 0 and masked > 0:
        k_step, v_step = step + k_place(whole, needed, OVERLAP), step + v_place(whole, needed, OVERLAP)
        key = whole * BLOCK_N
        o, m, sums = attend(q, ring, k_step, v_step, o, m, sums, c, shift, row, key, L, 0, TAIL, True, CAUSAL, FP8)
        if TAIL < BLOCK_N:
            end = L
            if CAUSAL:
                end = gl.minimum(row + ROWS, L)
            for part in gl.static_range(1, BLOCK_N // TAIL):
                if key + part * TAIL < end:  # a part that no row sees costs nothing
                    o, m, sums = attend(q, ring, k_step, v_step, o, m, sums, c, shift, row, key, L, part, TAIL,
                                        True, CAUSAL, FP8)  # fmt: skip
            release(ring, k_step)
            release(ring, v_step)
    if whole == 0:
        free_q(q_drained, turn, ME, CONSUMERS)
    for i in range(whole + masked, needed):  # tiles for the other consumers only
        k_step, v_step = step + k_place(i, needed, OVERLAP), step + v_place(i, needed, OVERLAP)
        acquire(ring, k_step)
        release(ring, k_step)
        acquire(ring, v_step)
        release(ring, v_step)
    o *= (scale_v / sums)[:, None]
    if FP8:
        o_slots.index(ME).reshape([ROWS, D]).store(o.to(o_desc.dtype))
        hopper.fence_async_shared()
        bulk.async_copy_shared_to_global(o_desc, [0, head, row, 0], o_slots.index(ME))  # HBM: written
    else:
        q.store(o.to(o_desc.dtype))  # only this consumer reads it, and it has
        hopper.fence_async_shared()
        bulk.async_copy_shared_to_global(o_desc, [0, head, row, 0], q_slots.index(place))  # HBM: written
    if LSE:
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        log_sum = (m * c - shift + gl.log2(sums)) * 0.6931471805599453
        gl.store(lse_ptr + head.to(gl.int64) * L + rows, log_sum, mask=rows < L)  # HBM: written
    return step + 2 * needed


@gluon.jit
def consume_tiles(o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, mode, ME: gl.constexpr):
    """Attend with 64 rows of each of this program's tiles, the next of which comes by mail: -1 is the end."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    letters, mail_filled, mail_drained = mail
    tile, turn, step = gl.program_id(0), 0, 0
    while tile >= 0:
        step = consume(o_desc, lse_ptr, scales, q_ring, o_slots, ring, tile, turn, step, sizes, c, mode, ME)
        mbarrier.wait(mail_filled.index(turn % 2), turn // 2 & 1)
        tile = gl.max(letters.index(turn % 2).load(ONE), 0)
        mbarrier.arrive(mail_drained.index(turn % 2))
        turn += 1
    bulk.store_wait(0)


@gluon.jit
def fill(desc, slots, filled, drained, slot, phase, b, head, row, col):
    """Ask for a tile as soon as its place is empty."""
    mbarrier.wait(drained.index(slot), phase ^ 1)  # of a fresh barrier, "the phase before", 1, is over: all are empty
    mbarrier.expect(filled.index(slot), desc.block_type.nbytes)
    bulk.async_copy_global_to_shared(desc, [b, head, row, col], filled.index(slot), slots.index(slot))


@gluon.jit
def produce_tiles(q_desc, k_desc, v_desc, counter_ptr, q_ring, ring, mail, count, sizes, mode):
    """Fetch Q, K and V of each of this program's tiles, as far ahead as there is space."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    CONSUMERS: gl.constexpr = mode[0]
    BLOCK_N: gl.constexpr = mode[1]
    CAUSAL: gl.constexpr = mode[3]
    FP8: gl.constexpr = mode[5]
    OVERLAP: gl.constexpr = mode[6]
    FREE: gl.constexpr = mode[7]
    BEHIND: gl.constexpr = 1 if OVERLAP else 0  # tiles that V is behind K
    heads, h, sharing, L, group = sizes
    q_slots, q_filled, q_drained = q_ring
    slots, filled, drained, SLOTS = ring
    letters, mail_filled, mail_drained = mail
    tile, turn, step = gl.program_id(0), 0, 0
    while tile < count:
        head, block = place_of(tile, heads, (L + ROWS * CONSUMERS - 1) // (ROWS * CONSUMERS), group, CAUSAL)
        b, head = head // h, head % h
        for consumer in gl.static_range(CONSUMERS):
            row = (block * CONSUMERS + consumer) * ROWS
            fill(q_desc, q_slots, q_filled, q_drained, turn % 2 * CONSUMERS + consumer, turn // 2 & 1, b, head, row, 0)
        head = head // sharing
        needed = needed_of(block, L, CONSUMERS, BLOCK_N, CAUSAL)
        for i in range(needed + BEHIND):
            if i < needed:
                at = i * BLOCK_N
                fill(k_desc, slots, filled, drained, step % SLOTS, step // SLOTS & 1, b, head, at, 0)
                step += 1
            if i >= BEHIND:
                at = (i - BEHIND) * BLOCK_N
                if FP8:
                    fill(v_desc, slots, filled, drained, step % SLOTS, step // SLOTS & 1, b, head, 0, at)
                else:
                    fill(v_desc, slots, filled, drained, step % SLOTS, step // SLOTS & 1, b, head, at, 0)
                step += 1
        if FREE:
            # After the loads: the consumers are behind by what the ring holds, and need the answer after that.
            taken = gl.atomic_add(counter_ptr, 1, sem="relaxed", scope="gpu")
            if taken == count - 1:  # all programs together ask as often as there are tiles: the last one cleans up
                gl.atomic_xchg(counter_ptr, 0, sem="relaxed", scope="gpu")
            tile = gl.num_programs(0) + taken
        else:
            tile += gl.num_programs(0)
        mbarrier.wait(mail_drained.index(turn % 2), (turn // 2 & 1) ^ 1)
        letters.index(turn % 2).store(gl.full([1], gl.where(tile < count, tile, -1), gl.int32, ONE))
        mbarrier.arrive(mail_filled.index(turn % 2))
        turn += 1


# One program: tiles of CONSUMERS x 64 rows of O, one after the other; four warps fetch, four per 64 rows compute.
# Grid: one program per SM, at most one per tile, or as many as there are tiles.
# HBM traffic per program: reads its rows of Q, writes those of O; K and V are read from L2 if others read them too.
# This version: no score leaves the registers, and while one warpgroup takes exponentials the others' products run.
@gluon.jit(do_not_specialize=["heads", "h", "sharing", "L", "group"])  # no new kernel for another length
def fa3_kernel(q_desc, k_desc, v_desc, o_desc, lse_ptr, scale_q_ptr, scale_k_ptr, scale_v_ptr, counter_ptr,
               heads, h, sharing, L, group, c, CAUSAL: gl.constexpr, LSE: gl.constexpr, FP8: gl.constexpr,
               REGISTERS: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, SLOTS: gl.constexpr,
               OVERLAP: gl.constexpr, TAIL: gl.constexpr, SCHEDULE: gl.constexpr):  # fmt: skip
    FREE: gl.constexpr = SCHEDULE == "free"
    D: gl.constexpr = o_desc.block_shape[3]
    q_slots = gl.allocate_shared_memory(q_desc.dtype, [2 * CONSUMERS, 1, 1, ROWS, D], q_desc.layout)
    slots = gl.allocate_shared_memory(k_desc.dtype, [SLOTS, 1, 1, BLOCK_N, D], k_desc.layout)
    o_slots = q_slots
    if FP8:
        o_slots = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, 1, 1, ROWS, D], o_desc.layout)
    q_filled = gl.allocate_shared_memory(gl.int64, [2 * CONSUMERS, 1], mbarrier.MBarrierLayout())
    q_drained = gl.allocate_shared_memory(gl.int64, [2 * CONSUMERS, 1], mbarrier.MBarrierLayout())
    filled = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    drained = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    letters = gl.allocate_shared_memory(gl.int32, [2, 1], mbarrier.MBarrierLayout())
    mail_filled = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mail_drained = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2 * CONSUMERS):
        mbarrier.init(q_filled.index(slot), count=1)  # the producer's expect
        mbarrier.init(q_drained.index(slot), count=1)  # the consumer whose rows they are
    for slot in gl.static_range(SLOTS):
        mbarrier.init(filled.index(slot), count=1)
        mbarrier.init(drained.index(slot), count=CONSUMERS)
    for slot in gl.static_range(2):
        mbarrier.init(mail_filled.index(slot), count=1)
        mbarrier.init(mail_drained.index(slot), count=CONSUMERS)
    count = heads * ((L + ROWS * CONSUMERS - 1) // (ROWS * CONSUMERS))
    ring, q_ring = (slots, filled, drained, SLOTS), (q_slots, q_filled, q_drained)
    mail, scales = (letters, mail_filled, mail_drained), (scale_q_ptr, scale_k_ptr, scale_v_ptr)
    sizes = heads, h, sharing, L, group
    mode: gl.constexpr = (CONSUMERS, BLOCK_N, TAIL, CAUSAL, LSE, FP8, OVERLAP, FREE)
    # The first entry runs in the four warps of num_warps; the others bring their own.
    if CONSUMERS == 3:
        gl.warp_specialize([
            (produce_tiles, (q_desc, k_desc, v_desc, counter_ptr, q_ring, ring, mail, count, sizes, mode)),
            (consume_tiles, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, mode, 0)),
            (consume_tiles, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, mode, 1)),
            (consume_tiles, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, mode, 2)),
        ], [4, 4, 4], [REGISTERS, REGISTERS, REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (produce_tiles, (q_desc, k_desc, v_desc, counter_ptr, q_ring, ring, mail, count, sizes, mode)),
            (consume_tiles, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, mode, 0)),
            (consume_tiles, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, mode, 1)),
        ], [4, 4], [REGISTERS, REGISTERS])  # fmt: skip
