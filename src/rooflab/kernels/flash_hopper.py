"""FlashAttention-3 for sm_90: attention whose products, exponentials and copies run at the same time.

Q is (B, h, L, d), K and V are (B, h_kv, L, d); h is a multiple of h_kv. `fa3` takes bf16 and fp16, `fa3_fp8` e4m3.
"""

import functools
import heapq
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
BLOCK_N = gl.constexpr(128)  # keys in a tile of K or V
TAIL = gl.constexpr(64)  # keys at a time where a mask is needed
P_SHIFT = gl.constexpr(8)  # P of FP8 is stored times 2**8: what is above 2**-14 stays a normal number of e4m3
LN2 = gl.constexpr(math.log(2))
ONE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))  # of one number, the same for all threads
SLOTS_BYTES = 128 * 2**10  # of shared memory, for tiles of K and V on their way
L2_BYTES = 32 * 2**20  # of K and V that programs that run together should share
NARROW = 1.08  # time of a row in a tile of 128 rows over that in one of 192: two consumers overlap less than three
TEMPLATES = {}  # (shape, strides, dtype, block): what TMA must know of such a tensor, without its address
COUNTERS = {}  # device: the next tile


# Schedule ------------------------------------------------------------------------------------------------------------


def tile_at(tile, heads, L, group, wide, causal):
    """Return the head of a tile and its first row for each consumer, by the kernel's own function; L is for none.

    >>> [tile_at(tile, 2, 512, 1, 2, False) for tile in (0, 1, 4)]  # 128 + 192 + 192 rows, those of 128 taken last
    [(0, [128, 192, 256]), (0, [320, 384, 448]), (0, [0, 64, 512])]
    """
    tiles = tiles_of(L, wide)
    head, first = place_of.fn(tile, heads, L, group, wide, tiles, causal)
    consumers = consumers_of.fn(first, wide, tiles)
    return head, [min(row_of.fn(first, consumers, me, L), L) for me in range(3)]


def tiles_of(L, wide):
    """Return how many tiles a head has: `wide` of 192 rows, the rest of 128.

    >>> tiles_of(512, 2), tiles_of(512, 0)
    (3, 4)
    """
    return wide + triton.cdiv(max(L - 192 * wide, 0), 128)


def makespan(heads, L, wide, sms):
    """Return the time of the longest program if all keys are seen; 1 is a row's, in a tile of 192 rows.

    >>> [round(makespan(16, 16384, wide, 132)) for wide in (85, 82)]  # 11 waves of one kind, or the last of small ones
    [2112, 2058]
    """
    loads = [0.0] * sms
    for tile in range(heads * tiles_of(L, wide)):
        heapq.heappush(loads, heapq.heappop(loads) + (192 if tile < heads * wide else 128 * NARROW))
    return max(loads)


@functools.cache
def wide_of(heads, L, causal, sms):
    """Return how many of a head's tiles have 192 rows, the rest 128: if possible so that the last wave is nearly full.

    >>> wide_of(16, 16384, False, 132), wide_of(16, 16384, True, 132)
    (82, 85)
    """
    if causal:  # tiles are of all lengths, and short ones fill the last wave
        return L // 192
    waves = range(heads * (L // 192) // sms + 1)
    return min((L // 192, *(wave * sms // heads for wave in waves)), key=lambda wide: makespan(heads, L, wide, sms))


def group_of(L, d, causal):
    """Return how many heads' tiles are mixed: causal tiles are of all lengths, but K and V should stay in L2.

    More than 64 at a time would ask HBM for all K and V at once, and then for nothing.

    >>> group_of(512, 128, True), group_of(16384, 128, True), group_of(16384, 128, False)
    (64, 4, 1)
    """
    return min(max(1, L2_BYTES // (4 * L * d)), 64) if causal else 1


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


def fa3(q, k, v, causal, out=None, lse=None, wide=None):
    """Return attention; `lse` (B, h, L), fp32, takes the natural logarithm of each row's sum. For sm_90 only."""
    B, h, L, d = _shape(q, k, v, DTYPES, HEAD_DIMS)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    return _launch(q, k, v, out, lse, None, None, None, causal, wide)


def fa3_fp8(q, k, v_t, scale_q, scale_k, scale_v, causal, out=None, lse=None, wide=None):
    """Return attention in bf16 of e4m3 operands, V^T from `fp8_layout_of_v`, with scales (B, h) or (B, h_kv)."""
    B, h, L, d = _shape(q, k, None, (FP8,), (128,))
    h_kv, padded = k.shape[1], L + -L % 16
    _require_like(v_t, "v_t", (B, h_kv, d, padded), FP8, q.device, otherwise="make it with fp8_layout_of_v")
    for name, scale, heads in (("scale_q", scale_q, h), ("scale_k", scale_k, h_kv), ("scale_v", scale_v, h_kv)):
        _require_like(scale, name, (B, heads), torch.float32, q.device)
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device) if out is None else out
    return _launch(q, k, v_t, out, lse, scale_q, scale_k, scale_v, causal, wide)


def _launch(q, k, v, out, lse, scale_q, scale_k, scale_v, causal, wide):
    B, h, L, d = q.shape
    _require_hopper(q)
    _require_like(out, "out", q.shape, torch.bfloat16 if q.dtype == FP8 else q.dtype, q.device)
    if lse is not None:
        _require_like(lse, "lse", (B, h, L), torch.float32, q.device)
    for name, tensor in dict(out=out, lse=lse, scale_q=scale_q, scale_k=scale_k, scale_v=scale_v).items():
        if tensor is not None and not tensor.is_contiguous():
            raise KernelError(f"{name} has strides {tensor.stride()}; pass a contiguous one")
    sms, keys = sm_count(q.device), BLOCK_N.value
    wide = wide_of(B * h, L, bool(causal), sms) if wide is None else wide
    blocks = (ROWS.value, d), (keys, d), (d, keys) if q.dtype == FP8 else (keys, d), (ROWS.value, d)
    names = ("q", "k", "v", "out")
    descriptors = [_describe(*each) for each in zip(names, (q, k, v, out.view(1, B * h, L, d)), blocks, strict=True)]
    scales = (scale_q, scale_k, scale_v) if q.dtype == FP8 else (q, q, q)  # q: not read
    fa3_kernel[(min(B * h * tiles_of(L, wide), sms),)](
        *descriptors, out if lse is None else lse, *scales, counter_of(q.device), B * h, h, h // k.shape[1], L,
        group_of(L, d, causal), wide, tiles_of(L, wide), d**-0.5 * math.log2(math.e), bool(causal),
        bool(causal or L % keys), lse is not None, q.dtype == FP8, SLOTS_BYTES // (keys * d * q.element_size()),
        num_warps=4,
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
    """Return the device's counter of tiles; a kernel leaves it at 0. Two calls must not overlap in time."""
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
def place_of(tile, heads, L, group, wide, tiles, CAUSAL):
    """Return a tile's head and its first row: of a head, tiles of 128 rows come first, then `wide` of 192."""
    narrow = tiles - wide
    if CAUSAL:  # long tiles first, so that what is left at the end is short: the last rows of a group of heads
        start = tile // (group * tiles) * group
        place = tile % (group * tiles)
        width = min(heads - start, group)
        head, block = start + place % width, tiles - 1 - place // width
    elif tile < heads * wide:
        head, block = tile // wide, narrow + tile % wide
    else:
        head, block = (tile - heads * wide) // narrow, (tile - heads * wide) % narrow
    first = 128 * block
    if block >= narrow:
        first = 128 * narrow + 192 * (block - narrow)
    return head, first


@gluon.jit
def consumers_of(first, wide, tiles):
    """Return how many consumers have rows of the tile that starts at `first`."""
    consumers = 3
    if first < 128 * (tiles - wide):
        consumers = 2
    return consumers


@gluon.jit
def row_of(first, consumers, me, L):
    """Return a consumer's first row of a tile; for one without rows L, from where nothing is fetched or stored."""
    row = first + 64 * me
    if me >= consumers:
        row = L
    return row


@gluon.jit
def needed_of(first, consumers, L, CAUSAL):
    """Return how many tiles of keys the rows of a tile see."""
    end = L
    if CAUSAL:
        end = min(first + 64 * consumers, L)
    return (end + 127) // 128


@gluon.jit
def whole_of(row, L, CAUSAL):
    """Return how many tiles of keys 64 rows see whole; if there are masks, they see the one after these in part."""
    whole = L // 128
    if CAUSAL:
        whole = row // 128
    if row >= L:  # nothing of it is stored: as little as possible
        whole = 0
    return whole


@gluon.jit
def barriers(N: gl.constexpr, COUNT: gl.constexpr):
    """Return N mbarriers, each of which is passed after COUNT arrivals."""
    bars = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(bars.index(i), count=COUNT)
    return bars


@gluon.jit
def fill(desc, ring, step, b, head, row, col):
    """Ask for a tile as soon as the place of its step is empty."""
    slots, filled, drained, SLOTS = ring
    full, tile = filled.index(step % SLOTS), slots.index(step % SLOTS)
    # Of a fresh barrier "the phase before", 1, is over: all places are empty.
    mbarrier.wait(drained.index(step % SLOTS), (step // SLOTS & 1) ^ 1)
    mbarrier.expect(full, desc.block_type.nbytes)
    bulk.async_copy_global_to_shared(desc, [b, head, row, col], full, tile)


@gluon.jit
def acquire(ring, step):
    """Wait for the tile of a step, and return it as a matrix."""
    slots, filled, drained, SLOTS = ring
    mbarrier.wait(filled.index(step % SLOTS), step // SLOTS & 1)
    tile = slots.index(step % SLOTS)
    return tile.reshape([tile.shape[2], tile.shape[3]])


@gluon.jit
def release(ring, step, pred=True):
    """Say that a step's tile is no longer needed by this consumer."""
    slots, filled, drained, SLOTS = ring
    mbarrier.arrive(drained.index(step % SLOTS), pred=pred)


@gluon.jit
def send(mail, turn, head, first):
    """Tell the consumers the next tile's head and first row, once all have read the last letter but one."""
    letters, filled, drained = mail
    mbarrier.wait(drained.index(turn % 2), (turn // 2 & 1) ^ 1)
    letters.index(turn % 2 * 2).store(gl.full([1], head, gl.int32, ONE))
    letters.index(turn % 2 * 2 + 1).store(gl.full([1], first, gl.int32, ONE))
    mbarrier.arrive(filled.index(turn % 2))


@gluon.jit
def receive(mail, turn):
    """Wait for the producer's letter, and return the next tile's head and first row."""
    letters, filled, drained = mail
    mbarrier.wait(filled.index(turn % 2), turn // 2 & 1)
    head = gl.max(letters.index(turn % 2 * 2).load(ONE), 0)
    first = gl.max(letters.index(turn % 2 * 2 + 1).load(ONE), 0)
    mbarrier.arrive(drained.index(turn % 2))
    return head, first


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
    # A row sees a key of its first tile, the last one that it needs: the new m is finite.
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
def attend(q, ring, step, o, m, sums, c, shift, row, key, L, PART: gl.constexpr, KEYS: gl.constexpr,
           MASK: gl.constexpr, CAUSAL: gl.constexpr, FP8: gl.constexpr):  # fmt: skip
    """Add the PART-th KEYS keys of a tile to O: scores, softmax, product with V, one after the other."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 32 if FP8 else 16])
    FIRST: gl.constexpr = MASK and PART == 0  # of a row's keys: there is no O to rescale or add to
    zeros = gl.zeros([ROWS, KEYS], gl.float32, LAYOUT)
    k = acquire(ring, step)
    if KEYS < BLOCK_N:
        k = k.slice(PART * KEYS, KEYS)
    s = hopper.warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)  # 2 ROWS KEYS d FLOP
    s = hopper.warpgroup_mma_wait(0, deps=[s])
    if KEYS == BLOCK_N:
        release(ring, step)
    # The Tensor Cores have the other consumers' products meanwhile: with three of them a ping-pong without a whistle.
    p, m, sums, alpha = softmax(s, m, sums, c, shift, row, key + PART * KEYS, L, MASK, CAUSAL)
    if not FIRST:
        o = o * rows_like(alpha, o)[:, None]
    p = operand(p, q.dtype)
    v = acquire(ring, step + 1)
    if FP8:
        v = v.permute((1, 0))  # (BLOCK_N, d): it came as V^T
    if KEYS < BLOCK_N:
        v = v.slice(PART * KEYS, KEYS)
    o = hopper.warpgroup_mma(p, v, o, use_acc=not FIRST, is_async=True)  # 2 ROWS KEYS d FLOP
    o = hopper.warpgroup_mma_wait(0, deps=[o])
    if KEYS == BLOCK_N:
        release(ring, step + 1)
    return o, rows_like(m, o), rows_like(sums, o)


@gluon.jit
def consume(o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, CAUSAL: gl.constexpr, MASK: gl.constexpr,
            LSE: gl.constexpr, FP8: gl.constexpr, ME: gl.constexpr):  # fmt: skip
    """Attend with 64 rows of each of this program's tiles; the next one's place comes by mail: head -1 is the end."""
    heads, h, sharing, L, group, wide, tiles = sizes
    D: gl.constexpr = o_desc.block_shape[3]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32 if FP8 else 16])
    c_tile, shift, scale_v = c, 0.0, 1.0
    turn, step = 0, 0
    head, first = place_of(gl.program_id(0), heads, L, group, wide, tiles, CAUSAL)
    while head >= 0:
        consumers = consumers_of(first, wide, tiles)
        needed = needed_of(first, consumers, L, CAUSAL)
        row = row_of(first, consumers, ME, L)
        whole = whole_of(row, L, CAUSAL)
        if FP8:
            kv = head // h * (h // sharing) + head % h // sharing
            c_tile = c * gl.load(scales[0] + head) * gl.load(scales[1] + kv)
            scale_v = gl.load(scales[2] + kv)
            shift = 1.0 * P_SHIFT
        o = gl.zeros([ROWS, D], gl.float32, LAYOUT)
        m = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, LAYOUT))
        sums = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, LAYOUT))
        # Keys come from the last to the first: tiles for other consumers, one with a mask, whole ones.
        begin = step + 2 * (needed - whole)
        for i in range(step, begin - 2 if MASK else begin):
            acquire(ring, i)
            release(ring, i)
        q = acquire(q_ring, 3 * turn + ME)
        # By now TMA has read the previous turn's O from its place of Q, if not yet written it. Hand that place back
        # before any product: the producer, up to a ring ahead, may wait there with the next turn's Q.
        bulk.store_wait(0)
        release(q_ring, 3 * turn + 3 + ME, pred=turn > 0)
        if MASK:
            # Not under an `if` of run time: ptxas would make Q's address on one path only, and scores would be wrong.
            key = whole * BLOCK_N
            o, m, sums = attend(q, ring, begin - 2, o, m, sums, c_tile, shift, row, key, L, 0, TAIL, True, CAUSAL, FP8)
            end = L
            if CAUSAL:
                end = gl.minimum(row + ROWS, L)
            if (key + TAIL < end) & (row < L):  # the second half, unless no row sees it
                o, m, sums = attend(q, ring, begin - 2, o, m, sums, c_tile, shift, row, key, L, 1, TAIL, True, CAUSAL,
                                    FP8)  # fmt: skip
            release(ring, begin - 2)
            release(ring, begin - 1)
        for i in range(whole):
            o, m, sums = attend(q, ring, begin + 2 * i, o, m, sums, c_tile, shift, row, 0, L, 0, BLOCK_N, False, CAUSAL,
                                FP8)  # fmt: skip
        o *= (scale_v / sums)[:, None]
        o_slot = o_slots.index(ME if FP8 else (3 * turn + ME) % 6)  # or Q's: only this consumer reads it, and it has
        o_slot.reshape([ROWS, D]).store(o.to(o_desc.dtype))
        hopper.fence_async_shared()
        bulk.async_copy_shared_to_global(o_desc, [0, head, row, 0], o_slot)  # HBM: written, rows from L on are not
        if LSE:
            rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
            log_sum = (m * c_tile - shift + gl.log2(sums)) * LN2
            gl.store(lse_ptr + head.to(gl.int64) * L + rows, log_sum, mask=rows < L)  # HBM: written
        step += 2 * needed
        head, first = receive(mail, turn)
        turn += 1
    bulk.store_wait(0)


@gluon.jit
def produce(q_desc, k_desc, v_desc, counter_ptr, q_ring, ring, mail, sizes, CAUSAL: gl.constexpr, FP8: gl.constexpr):
    """Fetch Q, K and V of each of this program's tiles, as far ahead as there is space."""
    heads, h, sharing, L, group, wide, tiles = sizes
    turn, step = 0, 0
    head, first = place_of(gl.program_id(0), heads, L, group, wide, tiles, CAUSAL)
    while head >= 0:
        consumers = consumers_of(first, wide, tiles)
        needed = needed_of(first, consumers, L, CAUSAL)
        b, h_q = head // h, head % h
        h_kv = h_q // sharing
        for i in range(needed):
            key = (needed - 1 - i) * BLOCK_N  # the keys that only some rows see come first
            fill(k_desc, ring, step, b, h_kv, key, 0)
            if FP8:
                fill(v_desc, ring, step + 1, b, h_kv, 0, key)
            else:
                fill(v_desc, ring, step + 1, b, h_kv, key, 0)
            step += 2
            if i == 0:  # after the first K and V, whose places may be free before those of Q
                for me in gl.static_range(3):
                    fill(q_desc, q_ring, 3 * turn + me, b, h_q, row_of(first, consumers, me, L), 0)
        # After the loads: the consumers are behind by what the ring holds, and need the answer after that. Nor do they
        # spend time on the divisions that find a tile's place: these are done here.
        taken = gl.atomic_add(counter_ptr, 1, sem="relaxed", scope="gpu")
        if taken == heads * tiles - 1:  # all programs together ask as often as there are tiles: the last one cleans up
            gl.atomic_xchg(counter_ptr, 0, sem="relaxed", scope="gpu")
        tile = gl.num_programs(0) + taken
        head = -1
        if tile < heads * tiles:
            head, first = place_of(tile, heads, L, group, wide, tiles, CAUSAL)
        send(mail, turn, head, first)
        turn += 1


# One program: tiles of 192 rows of O, or 128, one after the other; four warps fetch, four per 64 rows compute.
# Grid: one program per SM, at most one per tile; each takes the next tile when it is free.
# HBM traffic per program: reads its rows of Q, writes those of O; K and V are read from L2 if others read them too.
# This version: no score leaves the registers, and while one warpgroup takes exponentials the others' products run.
@gluon.jit(do_not_specialize=["heads", "h", "sharing", "L", "group", "wide", "tiles"])  # no new kernel for another L
def fa3_kernel(q_desc, k_desc, v_desc, o_desc, lse_ptr, scale_q_ptr, scale_k_ptr, scale_v_ptr, counter_ptr,
               heads, h, sharing, L, group, wide, tiles, c, CAUSAL: gl.constexpr, MASK: gl.constexpr,
               LSE: gl.constexpr, FP8: gl.constexpr, SLOTS: gl.constexpr):  # fmt: skip
    D: gl.constexpr = o_desc.block_shape[3]
    q_slots = gl.allocate_shared_memory(q_desc.dtype, [6, 1, 1, ROWS, D], q_desc.layout)
    slots = gl.allocate_shared_memory(k_desc.dtype, [SLOTS, 1, 1, BLOCK_N, D], k_desc.layout)
    o_slots = q_slots
    if FP8:
        o_slots = gl.allocate_shared_memory(o_desc.dtype, [3, 1, 1, ROWS, D], o_desc.layout)
    letters = gl.allocate_shared_memory(gl.int32, [4, 1], mbarrier.MBarrierLayout())  # two, each a head and a first row
    # The producer fills alone; a tile of K or V is drained by three consumers, one of Q by the one whose rows it has.
    q_ring = (q_slots, barriers(6, 1), barriers(6, 1), 6)
    ring = (slots, barriers(SLOTS, 1), barriers(SLOTS, 3), SLOTS)
    mail = (letters, barriers(2, 1), barriers(2, 3))
    scales = (scale_q_ptr, scale_k_ptr, scale_v_ptr)
    sizes = heads, h, sharing, L, group, wide, tiles
    # The first entry runs in the four warps of num_warps; the others bring four each, with 160 registers per thread.
    gl.warp_specialize([
        (produce, (q_desc, k_desc, v_desc, counter_ptr, q_ring, ring, mail, sizes, CAUSAL, FP8)),
        (consume, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, CAUSAL, MASK, LSE, FP8, 0)),
        (consume, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, CAUSAL, MASK, LSE, FP8, 1)),
        (consume, (o_desc, lse_ptr, scales, q_ring, o_slots, ring, mail, sizes, c, CAUSAL, MASK, LSE, FP8, 2)),
    ], [4, 4, 4], [160, 160, 160])  # fmt: skip
