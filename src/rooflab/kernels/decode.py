"""One decode step of a Llama-like model, beside its GEMVs: norm, rotation and cache, attention over the cache, SwiGLU.

Every wrapper takes `early`: the kernel then starts while the one before it still runs, on sm_90 and later, and waits
for it before it reads or writes anything but what no kernel of a step writes: weights, the position, cosines and sines,
and keys and values of earlier tokens. All of them wait, so that no kernel overtakes two.
"""

from . import gemv
from ._triton import KernelError, output, require, same_shape, sm_count, tl, torch, triton

MAX_COLS = 16384  # a row of add_norm must fit in the registers of one program
HEAD_DIMS = (16, 32, 64, 128, 256)
SWIGLU = dict(BLOCK=1024, num_warps=4)
QKV = dict(PAIRS=2, BLOCK_K=1024, STAGES=2, num_warps=2)

# Little's law: 4.8e12 B/s x 700 ns = 3.4 MB must be in flight, 25 KB per SM. A program keeps STAGES - 1 tiles of K and
# of V on their way, TILE elements each. With one warp, softmax, P and the sums over keys never leave it, and nothing
# waits at a barrier. Larger tiles read a little faster where a program has many of them. `attention_plan` chooses.
ONE_WARP = dict(TILE=4096, STAGES=3, num_warps=1)  # 37 KB of shared memory: up to six programs on an SM
TWO_WARPS = dict(TILE=8192, STAGES=3, num_warps=2)  # 74 KB: three
WIDE = dict(TILE=16384, STAGES=2, num_warps=4)  # 74 KB: three
DEEP = dict(TILE=8192, STAGES=4, num_warps=4)  # 107 KB: two, and much on its way while the kernel before ends
FP32 = dict(TILE=2048, STAGES=3, num_warps=8)  # no Tensor Core product without loss: more threads share the work
MAX_SPLITS = 256  # combine holds COMBINE_COLS columns of all splits at once
COMBINE_COLS = 32  # of a head's d_h results per program: 4 programs for each head of 128


def add_norm_reference(x, residual, weight, eps):
    """Return (residual + x, its RMSNorm times weight) in float64; with x None nothing is added."""
    total = residual.double() if x is None else residual.double() + x.double()
    return total, total * torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps) * weight.double()


def rotate_reference(x, cos, sin):
    """Return x, (B, heads, d_h), rotated by rows of cos and sin, (B, d_h), in float64; pairs are half a head apart."""
    x, cos, sin = x.double(), cos.double()[:, None], sin.double()[:, None]
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention_reference(q, k_cache, v_cache, position):
    """Return softmax(q K^T / sqrt(d_h)) V over positions 0 to `position` of the cache, (B, h, d_h), in float64."""
    B, h, d_h = q.shape
    h_kv = k_cache.shape[1]
    out = torch.empty(B, h_kv, h // h_kv, d_h, dtype=torch.float64, device=q.device)
    for b, last in enumerate(position.expand(B).tolist()):
        k, v = (cache[b, :, : last + 1].double() for cache in (k_cache, v_cache))  # (h_kv, length, d_h)
        s = q[b].view(h_kv, -1, d_h).double() @ k.transpose(-1, -2) * d_h**-0.5  # (h_kv, group, length)
        out[b] = torch.softmax(s, dim=-1) @ v
    return out.view(B, h, d_h)


def swiglu_reference(gate_up):
    """Return silu(gate) * up in float64, where gate and up are the halves of each row."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def add_norm(x, residual, weight, eps, out=None, early=False):
    """Add x to residual, in place, and return RMSNorm(residual) * weight, (B, d); with x None nothing is added.

    The sum and the normalised row are each rounded to the tensors' dtype, as Hugging Face's Llama does.
    """
    tensors = {"residual": residual} if x is None else {"residual": residual, "x": x}
    require(dims=2, **tensors)
    same_shape(**tensors)
    require(dims=1, **{"a row of residual": residual[0], "weight": weight})
    same_shape(**{"a row of residual": residual[0], "weight": weight})
    rows, cols = residual.shape
    if cols > MAX_COLS:
        raise KernelError(f"residual has rows of {cols} elements; at most {MAX_COLS} fit in one program's registers")
    out = output(out, residual)
    BLOCK = triton.next_power_of_2(cols)
    # One 16-byte load of 16-bit elements per thread, while there are threads.
    options = _launch(residual, early) | dict(num_warps=min(max(BLOCK // 256, 1), 16))
    add = x is not None
    add_norm_kernel[(rows,)](x if add else residual, residual, weight, out, cols, eps, add, BLOCK, **options)
    return out


def rope_cache(qkv, cos, sin, position, k_cache, v_cache, h, out=None, early=False):
    """Return q rotated, (B, h, d_h), and write k rotated, and v, into the caches at `position`, read on the device.

    qkv is (B, (h + 2 h_kv) d_h), cos and sin are (>= capacity, d_h), caches (B, h_kv, capacity, d_h), and position has
    1 or B integers. At a position outside of the cache nothing is written to it, and q becomes NaN.
    """
    B, h_kv, capacity, d_h = _caches(k_cache, v_cache)
    require(dims=2, k_cache=k_cache.flatten(1), qkv=qkv)
    _group(h, h_kv)
    if qkv.shape != (B, (h + 2 * h_kv) * d_h):
        raise KernelError(f"qkv has shape {tuple(qkv.shape)}; with these caches give {(B, (h + 2 * h_kv) * d_h)}")
    _angles(cos, sin, capacity, d_h)
    stride = _position(position, qkv)
    out = output(out, qkv, (B, h, d_h))
    rope_cache_kernel[(h + 2 * h_kv, B)](
        qkv, cos, sin, position, k_cache, v_cache, out, capacity, h, h_kv, stride, d_h // 2,
        **_launch(qkv, early), num_warps=1,
    )  # fmt: skip
    return out


def qkv_cache(x, weight, squares, cos, sin, position, k_cache, v_cache, h, eps=1e-5, out=None, early=False):
    """Return what `rope_cache` returns for the product r x W^T of one sequence, from the product's own kernel.

    x (1, K), W ((h + 2 h_kv) d_h, K), r and `squares` are those of `gemv.normed`, all else of `rope_cache`.
    """
    B, h_kv, capacity, d_h = _caches(k_cache, v_cache)
    require(dims=2, k_cache=k_cache.flatten(1), x=x, weight=weight)
    _group(h, h_kv)
    rows, K = (h + 2 * h_kv) * d_h, x.shape[1]
    if B != 1 or x.shape[0] != 1 or weight.shape != (rows, K):
        got = f"weight {tuple(weight.shape)} and caches of {B} sequences"
        raise KernelError(f"x has shape {tuple(x.shape)}, {got}; give (1, K), ({rows}, K) and 1, or use rope_cache")
    _angles(cos, sin, capacity, d_h)
    _position(position, x)
    out = output(out, x, (1, h, d_h))
    count, SUMS = gemv.count_squares(squares)
    qkv_cache_kernel[(rows // 2 // QKV["PAIRS"],)](
        x, squares, weight, cos, sin, position, k_cache, v_cache, out, K, count, eps, capacity, h, h_kv, SUMS, d_h // 2,
        **_launch(x, early), **QKV,
    )  # fmt: skip
    return out


def split_attention(q, k_cache, v_cache, position, out=None, splits=None, early=False):
    """Return attention of q, (B, h, d_h), over positions 0 to `position` of the caches, from at most two kernels.

    position has 1 or B integers and is read on the device; `splits` programs share the context of each key head.
    """
    B, h_kv, capacity, d_h = _caches(k_cache, v_cache)
    require(dims=3, **{"a sequence of k_cache": k_cache[0], "q": q})
    h = q.shape[1]
    group = _group(h, h_kv)
    if q.shape != (B, h, d_h):
        raise KernelError(f"q has shape {tuple(q.shape)}; with these caches give {(B, h, d_h)}")
    stride = _position(position, q)
    out = output(out, q)
    config, planned = attention_plan(B * h_kv, capacity, q.element_size(), sm_count(q.device), early)
    BLOCK = max(config["TILE"] // d_h, 16)
    splits = min(planned, triton.cdiv(capacity, BLOCK), MAX_SPLITS) if splits is None else splits
    if not isinstance(splits, int) or not 1 <= splits <= MAX_SPLITS:
        raise KernelError(f"splits is {splits}; choose a whole number from 1 to {MAX_SPLITS}, or None")
    options = _launch(q, early)
    apart = not early and B * h_kv < sm_count(q.device)
    signal = gemv.can_start_early(q)  # what follows is ours: it may start early on all cards that know how
    # With one split the result is written at once; these are then not used.
    partial = torch.empty((B * h, splits, d_h) if splits > 1 else 1, dtype=torch.float32, device=q.device)
    state = torch.empty((2, B * h, splits) if splits > 1 else 1, dtype=torch.float32, device=q.device)
    split_kernel[(B * h_kv, splits)](
        q, k_cache, v_cache, position, out, partial, state, capacity, h_kv, stride, splits, d_h**-0.5, group,
        max(triton.next_power_of_2(group), 16), d_h, splits == 1, apart, BLOCK, config["STAGES"], SIGNAL=signal,
        **options, num_warps=config["num_warps"],
    )  # fmt: skip
    if splits > 1:
        cols, padded = min(COMBINE_COLS, d_h), triton.next_power_of_2(splits)
        combine_kernel[(B * h, d_h // cols)](
            partial, state, out, splits, padded, d_h, cols, EARLY=signal, launch_pdl=signal,
            num_warps=4 if padded <= 128 else 8,
        )  # fmt: skip
    return out


def attention_plan(heads, capacity, element_size, sms, early=False):
    """Return how a program of split attention is built, and among how many the context of each key head is split.

    Few heads are split so that all programs are on the GPU at once. Many are split only where they would make between
    one and four rounds of programs, whose last leaves SMs idle for long: if the parts are long enough to be worth it.

    >>> [attention_plan(heads, 32768, 2, 132)[1] for heads in (8, 64, 256, 512, 2048)]
    [49, 6, 1, 4, 1]
    """
    if heads < sms or element_size == 4:
        config, programs = (FP32 if element_size == 4 else ONE_WARP), 3
        if early and element_size == 2:  # beside programs of the kernels before and after
            config, programs = (DEEP, 2) if heads * capacity >= 512 * sms else (ONE_WARP, 4)
        return config, max(programs * sms // heads, 1)
    if heads <= 3 * sms:
        return (WIDE if capacity >= 16384 else TWO_WARPS), 1
    splits = triton.cdiv(4 * 3 * sms, heads)
    return (WIDE, splits) if splits == 1 or capacity >= 4096 * splits else (ONE_WARP, 1)


def swiglu(gate_up, out=None, early=False):
    """Return silu(gate) * up, (B, d_ff), where gate_up is (B, 2 d_ff): the gates of a row, then its ups."""
    require(dims=2, gate_up=gate_up)
    rows, cols = gate_up.shape
    if cols % 2:
        raise KernelError(f"gate_up has rows of {cols} elements; give an even number: gates, then ups")
    out = output(out, gate_up, (rows, cols // 2))
    grid = (triton.cdiv(cols // 2, SWIGLU["BLOCK"]), rows)
    swiglu_kernel[grid](gate_up, out, cols // 2, **SWIGLU, **_launch(gate_up, early))
    return out


def _launch(tensor, early):
    """Return the launch's options: EARLY, and launch_pdl where a GPU runs it."""
    early = early and gemv.starts_early(tensor, "early=False")
    return dict(EARLY=early, launch_pdl=early)


def _caches(k_cache, v_cache):
    require(dims=4, k_cache=k_cache, v_cache=v_cache)
    same_shape(k_cache=k_cache, v_cache=v_cache)
    if k_cache.shape[3] not in HEAD_DIMS:
        raise KernelError(f"head dimension {k_cache.shape[3]}; choose from {', '.join(map(str, HEAD_DIMS))}")
    if k_cache[0, 0].numel() >= 2**31:
        raise KernelError(f"capacity {k_cache.shape[2]}; offsets in a head have 32 bits: take a smaller cache")
    if k_cache.shape[0] > 65535:
        raise KernelError(f"{k_cache.shape[0]} sequences; a grid holds at most 65535: split the batch")
    return k_cache.shape


def _group(h, h_kv):
    if not isinstance(h, int) or h < 1 or h % h_kv:
        raise KernelError(f"{h} query heads do not share {h_kv} key heads evenly: give a multiple of {h_kv}")
    return h // h_kv


def _angles(cos, sin, capacity, d_h):
    require(dims=2, cos=cos, sin=sin)
    same_shape(cos=cos, sin=sin)
    if cos.shape[0] < capacity or cos.shape[1] != d_h:
        raise KernelError(f"cos has shape {tuple(cos.shape)}; the caches need ({capacity} or more, {d_h})")


def _position(position, like):
    """Check position and return its stride: 0 if one serves all sequences."""
    require(dtypes=(torch.int32, torch.int64), dims=1, position=position)
    if position.device != like.device:
        raise KernelError(f"position is on {position.device}, the rest on {like.device}: move it with .to()")
    if position.shape[0] not in (1, like.shape[0]):
        raise KernelError(f"position has {position.shape[0]} elements; give 1, or one for each of {like.shape[0]} rows")
    return int(position.shape[0] > 1)


# One program: one row.
# Grid: B programs.
# HBM traffic per program: reads up to 2 d elements, writes 2 d; all of it usually stays in L2 between two kernels.
# This version: one kernel for residual and norm; the sum is rounded before it is normalised, as if it had been stored.
@triton.jit
def add_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, cols, eps, ADD: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.program_id(0).to(tl.int64) * cols
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    weight = tl.load(weight_ptr + offs, mask=mask)  # (BLOCK,)  no kernel writes it
    if EARLY:
        tl.extra.cuda.gdc_wait()
    total = tl.load(residual_ptr + start + offs, mask=mask, other=0.0)  # (BLOCK,)
    if ADD:
        x = tl.load(x_ptr + start + offs, mask=mask, other=0.0)  # (BLOCK,)
        total = (total.to(tl.float32) + x.to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + start + offs, total, mask=mask)
    total = total.to(tl.float32)
    normed = total * tl.rsqrt(tl.sum(total * total) / cols + eps)
    normed = normed.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + start + offs, (normed * weight.to(tl.float32)).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def angles(cos_ptr, sin_ptr, position, capacity, pair, HALF: tl.constexpr):
    """Return cosines and sines for both elements of each pair; NaN at a position outside of the cache."""
    at = position * (2 * HALF) + pair
    inside = (position >= 0) & (position < capacity) & (pair < HALF)  # all or none
    nan = float("nan")
    cos_1 = tl.load(cos_ptr + at, mask=inside, other=nan).to(tl.float32)
    cos_2 = tl.load(cos_ptr + at + HALF, mask=inside, other=nan).to(tl.float32)
    sin_1 = tl.load(sin_ptr + at, mask=inside, other=nan).to(tl.float32)
    sin_2 = tl.load(sin_ptr + at + HALF, mask=inside, other=nan).to(tl.float32)
    return cos_1, cos_2, sin_1, sin_2


@triton.jit
def put_heads(first, second, cos_1, cos_2, sin_1, sin_2, q_ptr, k_ptr, v_ptr, b, head, pair, position, capacity,
              h, h_kv, HALF: tl.constexpr):  # fmt: skip
    """Rotate pairs of a head of q or k, and write them to q or to the cache; those of v go there as they are."""
    dtype = q_ptr.dtype.element_ty
    x_1, x_2 = first.to(tl.float32), second.to(tl.float32)
    if head < h + h_kv:
        first, second = (x_1 * cos_1 - x_2 * sin_1).to(dtype), (x_2 * cos_2 + x_1 * sin_2).to(dtype)
    if head < h:
        ptrs = q_ptr + (b * h + head) * (2 * HALF) + pair
        tl.store(ptrs, first)
        tl.store(ptrs + HALF, second)
    else:
        inside = (position >= 0) & (position < capacity) & (pair < HALF)
        kv_head = (head - h) % h_kv
        at = ((b * h_kv + kv_head) * capacity + position) * (2 * HALF) + pair
        if head < h + h_kv:
            tl.store(k_ptr + at, first, mask=inside)
            tl.store(k_ptr + at + HALF, second, mask=inside)
        else:
            tl.store(v_ptr + at, first, mask=inside)
            tl.store(v_ptr + at + HALF, second, mask=inside)


# One program: one head of one sequence: of q, of k, or of v.
# Grid: (h + 2 h_kv, B).
# HBM traffic per program: reads d_h elements, writes d_h; rows of cos and sin come from L2.
# This version: rotation and cache write in one kernel; the position is read here, so that a CUDA graph can advance it.
@triton.jit
def rope_cache_kernel(
    qkv_ptr, cos_ptr, sin_ptr, position_ptr, k_ptr, v_ptr, out_ptr, capacity, h, h_kv, position_stride,
    HALF: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    head, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    pair = tl.arange(0, HALF)
    position = tl.load(position_ptr + b * position_stride).to(tl.int64)
    cos_1, cos_2, sin_1, sin_2 = angles(cos_ptr, sin_ptr, position, capacity, pair, HALF)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    x_ptrs = qkv_ptr + (b * (h + 2 * h_kv) + head) * (2 * HALF) + pair
    first, second = tl.load(x_ptrs), tl.load(x_ptrs + HALF)  # (HALF,) each
    put_heads(first, second, cos_1, cos_2, sin_1, sin_2, out_ptr, k_ptr, v_ptr, b, head, pair, position, capacity, h,
              h_kv, HALF)  # fmt: skip


# One program: PAIRS pairs of one head of q, of k, or of v: 2 PAIRS rows of W, half a head apart.
# Grid: (h + 2 h_kv) d_h / (2 PAIRS) programs.
# HBM traffic per program: reads 2 PAIRS K elements of W, writes 2 PAIRS; vectors and rows of cos and sin are in L2.
# This version: half a norm, rotation and cache write inside the product: attention follows it without a kernel between.
@triton.jit
def qkv_cache_kernel(
    x_ptr, squares_ptr, w_ptr, cos_ptr, sin_ptr, position_ptr, k_ptr, v_ptr, out_ptr, K, count, eps, capacity, h, h_kv,
    SUMS: tl.constexpr, HALF: tl.constexpr, EARLY: tl.constexpr, PAIRS: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) // (HALF // PAIRS)
    pair = tl.program_id(0) % (HALF // PAIRS) * PAIRS + tl.arange(0, PAIRS)
    N, row = (h + 2 * h_kv) * (2 * HALF), head * (2 * HALF) + pair
    w = gemv.weights(w_ptr, row, 0, N, K, BLOCK_K)
    u = gemv.weights(w_ptr, row + HALF, 0, N, K, BLOCK_K)
    position = tl.load(position_ptr).to(tl.int64)
    cos_1, cos_2, sin_1, sin_2 = angles(cos_ptr, sin_ptr, position, capacity, pair, HALF)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    x = gemv.vector(x_ptr, 0, K, BLOCK_K)
    if SUMS:
        squares = gemv.vector(squares_ptr, 0, count, SUMS)  # (SUMS,)
    first = gemv.products(w, x, PAIRS, BLOCK_K)
    second = gemv.products(u, x, PAIRS, BLOCK_K)
    for start in tl.range(BLOCK_K, K, BLOCK_K, num_stages=STAGES):
        x = gemv.vector(x_ptr, start, K, BLOCK_K)
        first += gemv.products(gemv.weights(w_ptr, row, start, N, K, BLOCK_K), x, PAIRS, BLOCK_K)
        second += gemv.products(gemv.weights(w_ptr, row + HALF, start, N, K, BLOCK_K), x, PAIRS, BLOCK_K)
    first, second = tl.sum(first, axis=1), tl.sum(second, axis=1)
    if SUMS:
        first *= gemv.inverse_rms(squares, K, eps)
        second *= gemv.inverse_rms(squares, K, eps)
    # As rope_cache finds them: rounded by the product.
    first, second = first.to(out_ptr.dtype.element_ty), second.to(out_ptr.dtype.element_ty)
    put_heads(first, second, cos_1, cos_2, sin_1, sin_2, out_ptr, k_ptr, v_ptr, tl.cast(0, tl.int64), head, pair,
              position, capacity, h, h_kv, HALF)  # fmt: skip


@triton.jit
def attend(q, k, v_ptrs, valid, m, l, acc, scale, MASK: tl.constexpr):  # noqa: E741
    """Return online softmax's maximum, sum and output with a block of keys added: 4 ROWS BLOCK D FLOP.

    If MASK, keys that are not `valid`, (BLOCK, 1), do not count, and their values, which may be NaN, are not read.
    """
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)  # (ROWS, BLOCK)
    if MASK:
        s = tl.where(tl.trans(valid), s, -float("inf"))
    m_new = tl.maximum(m, tl.max(s, axis=1))  # finite: each block has a valid key
    rescale = tl.exp2(m - m_new)
    p = tl.exp2(s - m_new[:, None])
    l = l * rescale + tl.sum(p, axis=1)  # noqa: E741
    v = tl.load(v_ptrs, mask=valid, other=0.0) if MASK else tl.load(v_ptrs)  # (BLOCK, D)  HBM: read once
    return m_new, l, tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")  # (ROWS, D)


# One program: one of `splits` parts of the context, for the GROUP query heads of one key head of one sequence.
# Grid: (B h_kv, splits); the parts differ by one block at most, and are empty where the context has fewer blocks.
# HBM traffic per program: reads 2 L d_h / splits elements of K and V once, writes GROUP (d_h + 2) in fp32.
# This version: online softmax along a part; a group shares its loads, padded to the 16 rows that a Tensor Core takes.
@triton.jit
def split_kernel(
    q_ptr, k_ptr, v_ptr, position_ptr, out_ptr, partial_ptr, state_ptr, capacity, h_kv, position_stride, splits,
    scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr, APART: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr, SIGNAL: tl.constexpr,
):  # fmt: skip
    if SIGNAL:
        tl.extra.cuda.gdc_launch_dependents()
    kv_head, split = tl.program_id(0), tl.program_id(1)
    position = tl.load(position_ptr + kv_head // h_kv * position_stride)
    length = tl.minimum(position.to(tl.int32) + 1, capacity)
    blocks = tl.cdiv(length, BLOCK)
    # Early, only q and the newest block, where the token just written is, wait; that block counts as two.
    if EARLY:
        ready, units = blocks - 1, blocks + 1
    else:
        ready, units = blocks, blocks
    if APART:  # what the few heads' programs read at one time lies side by side
        first, last, stride = split, blocks, splits
    else:
        first, last, stride = split * units // splits, tl.minimum((split + 1) * units // splits, ready), 1
    rows, offs_d = tl.arange(0, ROWS), tl.arange(0, D)
    q_rows = kv_head.to(tl.int64) * GROUP + rows  # of (B h): query heads of a group are neighbours
    used = (rows < GROUP)[:, None] & (offs_d < D)[None, :]  # (ROWS, D)
    q_ptrs = q_ptr + q_rows[:, None] * D + offs_d[None, :]
    q = tl.zeros((ROWS, D), q_ptr.dtype.element_ty)
    if not EARLY:
        q = tl.load(q_ptrs, mask=used, other=0.0)
    start = kv_head.to(tl.int64) * capacity * D
    m = tl.full((ROWS,), -float("inf"), tl.float32)
    l = tl.zeros((ROWS,), tl.float32)  # noqa: E741
    acc = tl.zeros((ROWS, D), tl.float32)
    for block in tl.range(first, last, stride, num_stages=STAGES):
        keys = block * BLOCK + tl.arange(0, BLOCK)
        offs = keys[:, None] * D + offs_d[None, :]  # (BLOCK, D)
        valid = (keys < length)[:, None]  # (BLOCK, 1)  all of them if EARLY, which lets the newest block wait
        k_ptrs = k_ptr + start + offs
        k = tl.load(k_ptrs) if EARLY else tl.load(k_ptrs, mask=valid, other=0.0)  # (BLOCK, D)  HBM: read once
        if EARLY:  # noqa: SIM102
            if block == first:  # by now STAGES - 1 blocks are on their way
                tl.extra.cuda.gdc_wait()
                q = tl.load(q_ptrs, mask=used, other=0.0)
        m, l, acc = attend(q, k, v_ptr + start + offs, valid, m, l, acc, scale, not EARLY)  # noqa: E741
    found = first < last
    if EARLY:
        tl.extra.cuda.gdc_wait()  # again, for parts without such blocks
        newest = (split == splits - 1) & (ready >= 0)
        found |= newest
        if newest:
            keys = ready * BLOCK + tl.arange(0, BLOCK)
            offs = keys[:, None] * D + offs_d[None, :]  # (BLOCK, D)
            valid = (keys < length)[:, None]
            q = tl.load(q_ptrs, mask=used, other=0.0)
            k = tl.load(k_ptr + start + offs, mask=valid, other=0.0)
            m, l, acc = attend(q, k, v_ptr + start + offs, valid, m, l, acc, scale, True)  # noqa: E741
    if WHOLE:
        y = acc / l[:, None]
        tl.store(out_ptr + q_rows[:, None] * D + offs_d[None, :], y.to(out_ptr.dtype.element_ty), mask=used)
    else:
        # An empty part says so by m = -inf, and leaves its output unwritten.
        at = q_rows * splits + split
        n_rows = tl.num_programs(0).to(tl.int64) * GROUP
        tl.store(state_ptr + at, m, mask=rows < GROUP)
        tl.store(state_ptr + n_rows * splits + at, l, mask=rows < GROUP)
        tl.store(partial_ptr + at[:, None] * D + offs_d[None, :], acc, mask=used & found)


# One program: COLS of the d_h results of one query head.
# Grid: (B h, d_h / COLS).
# HBM traffic per program: writes COLS elements; the splits (COLS + 2) in fp32 that it reads were just written, to L2.
# This version: a second kernel; all parts are read at once, and added in an order that is always the same.
@triton.jit
def combine_kernel(
    partial_ptr, state_ptr, out_ptr, splits, SPLITS: tl.constexpr, D: tl.constexpr, COLS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    offs_s, offs_d = tl.arange(0, SPLITS), tl.program_id(1) * COLS + tl.arange(0, COLS)
    n_rows = tl.num_programs(0).to(tl.int64)
    at = row * splits + offs_s
    m = tl.load(state_ptr + at, mask=offs_s < splits, other=-float("inf"))  # (SPLITS,)
    l = tl.load(state_ptr + n_rows * splits + at, mask=offs_s < splits, other=0.0)  # noqa: E741
    mask = (offs_s < splits)[:, None] & (offs_d < D)[None, :]
    # In flight together with m: what an empty part holds is dropped afterwards.
    o = tl.load(partial_ptr + at[:, None] * D + offs_d[None, :], mask=mask, other=0.0)  # (SPLITS, COLS)
    o = tl.where((m > -float("inf"))[:, None], o, 0.0)
    weight = tl.exp2(m - tl.max(m, axis=0))  # (SPLITS,)  at least one part has keys
    y = tl.sum(o * weight[:, None], axis=0) / tl.sum(l * weight, axis=0)
    tl.store(out_ptr + row * D + offs_d, y.to(out_ptr.dtype.element_ty))


# One program: BLOCK results of one row.
# Grid: (ceil(d_ff / BLOCK), B).
# HBM traffic per program: reads 2 BLOCK elements, writes BLOCK; at small B all of it comes from L2.
# This version: one kernel of its own, where the GEMV before it has no such epilogue.
@triton.jit
def swiglu_kernel(gate_up_ptr, out_ptr, cols, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(1).to(tl.int64)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < cols
    gate = tl.load(gate_up_ptr + row * 2 * cols + offs, mask=mask).to(tl.float32)  # (BLOCK,)
    up = tl.load(gate_up_ptr + row * 2 * cols + cols + offs, mask=mask).to(tl.float32)  # (BLOCK,)
    y = gate / (1 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * cols + offs, y.to(out_ptr.dtype.element_ty), mask=mask)
