"""FlashAttention: exact attention whose L x L matrices never leave the chip, in the schedules of FA1 and FA2.

Both walk over tiles of S = Q K^T / sqrt(d_h) with an online softmax. FA1 keeps a block of K and V and passes all of Q
and O by it; FA2 keeps a block of Q and O and passes K and V by it. q is (B, h, L, d_h), k and v are (B, h_kv, L, d_h).
Queries and keys are the same L positions, so that no row of S is masked throughout.
"""

import math

from ._triton import DTYPES, INTERPRETED, KernelError, output, require, same_shape, tl, torch, triton

TensorDescriptor = triton.tools.tensor_descriptor.TensorDescriptor

HEAD_DIMS = (64, 128)
# BLOCK_N keys are split over 4 warps: the tile of FA1's own code for d_h = 128, fmha_fwd_hdim128.cu.
# By bytes per element, here and below: fp32 is for the interpreter only.
FA1 = {
    2: dict(BLOCK_M=16, BLOCK_N=128, num_warps=4, num_stages=2),
    4: dict(BLOCK_M=16, BLOCK_N=64, num_warps=4, num_stages=1),
}
# HEADS heads take turns, so that at any time their programs are at similar blocks of Q. With 168 registers per thread
# and 49 KiB of shared memory three programs fit on an SM: one takes exponentials while the others multiply.
FA2 = {
    2: dict(BLOCK_M=64, BLOCK_N=128, HEADS=4, num_warps=4, num_stages=1, maxnreg=168),
    4: dict(BLOCK_M=32, BLOCK_N=32, HEADS=4, num_warps=4, num_stages=1),
}
KEYS_VALUES = {
    2: dict(BLOCK_M=64, BLOCK_N=64, HEADS=4, num_warps=4, num_stages=2),
    4: dict(BLOCK_M=32, BLOCK_N=32, HEADS=4, num_warps=4, num_stages=1),
}
QUERIES = {
    2: dict(BLOCK_M=128, BLOCK_N=64, HEADS=4, num_warps=8, num_stages=3),
    4: dict(BLOCK_M=32, BLOCK_N=32, HEADS=4, num_warps=4, num_stages=1),
}
LOG2E = tl.constexpr(math.log2(math.e))  # exp(x) = exp2(x LOG2E), and exp2 is one instruction


# Costs ---------------------------------------------------------------------------------------------------------------


def fa1_bytes(B, h, L, d_h, causal=False, size=2, block_n=128):
    """Return the bytes that FA1's programs ask for: each block of keys has all rows of Q read, and O, l, m both ways.

    Rows are visited R = L T times, with T = ceil(L / B_c) blocks of keys; when causal T (T - 1) B_c / 2 times less.
    A head costs size d_h (3 L + R) + (R - L) (8 d_h + 16): O, l and m are fp32 between the first visit and the last.
    As B_c is M / (4 d_h) for M elements on chip, this is Theta(L^2 d_h^2 / M). How much of it crosses HBM depends on
    L2, which can hold the 4 B h L d_h bytes of O while these are few.

    >>> round(fa1_bytes(1, 16, 4096, 128) / 1e9, 2)  # GB
    2.7
    """
    blocks = math.ceil(L / block_n)
    visits = L * blocks - (block_n * blocks * (blocks - 1) // 2 if causal else 0)
    return B * h * (size * d_h * (3 * L + visits) + (visits - L) * (8 * d_h + 16))


def fa2_bytes(B, h, L, d_h, causal=False, size=2, block_m=64):
    """Return the bytes that FA2's programs ask for: Q, O and lse once, K and V once for each block of queries.

    A head costs 2 L d_h size + 4 L + 2 V d_h size, with V = L ceil(L / B_r) visits of keys, about half when causal.
    Programs that run together ask for the same keys, so that L2 answers for nearly all but the first of them.

    >>> round(fa2_bytes(1, 16, 4096, 128) / 1e9, 2)  # GB; if K and V cross HBM once, 0.07
    2.18
    """
    blocks = math.ceil(L / block_m)
    visits = sum(min((block + 1) * block_m, L) for block in range(blocks)) if causal else L * blocks
    return B * h * (2 * L * d_h * size + 4 * L + 2 * visits * d_h * size)


def fa1_tiles(L, causal=False, block_m=16, block_n=128):
    """Return the number of tiles of S that one program of FA1 computes, one after the other.

    >>> fa1_tiles(4096), fa1_tiles(4096, causal=True)
    (8192, 4224)
    """
    return sum(math.ceil((L - start if causal else L) / block_m) for start in range(0, L, block_n))


def fa1_seconds(B, h, L, causal=False, sms=132, clock=1.98e9, latency=4100, busy=2400):
    """Return a model of FA1's time on a GPU, for d_h = 128 and the config `FA1`.

    A tile of S is one chain of dependent steps. In cycles, from the machine code and the latency of each instruction:
    Q K^T and its maximum 750, the maximum between warps 200, P and its sum 300, P V 450, O between warps 850, O
    rescaled 200, O, l and m written 450; that is 3200. Measured, on one H200: 3,630 with 16 programs, up to 4,940 with
    128, which wait longer for L2; `latency` is between. A block of keys costs about a tile more, for K and V to arrive.

    An SM holds two programs. They share the pipe of shared memory, 128 bytes a cycle, which a tile keeps `busy`:
    operands of 64 mma per warp 640 cycles, parts of O 512, Q, O and its new order 288, row values and shuffles 230; in
    all 1,670, and with what else they share, from the measurement, 2,400.
    Each program finds it taken with probability busy / latency and then waits for the other:

        cycles for a tile of both = latency + busy^2 / latency

    >>> round(fa1_seconds(1, 16, 4096) * 1e3, 1)  # ms; 16 of 132 SMs work
    17.0
    >>> round(fa1_seconds(16, 16, 1024) * 1e3, 2)  # 124 SMs have two programs
    1.45
    """
    pairs, single = divmod(math.ceil(B * h / sms), 2)
    cycles = pairs * (latency + busy**2 / latency) + single * latency
    return cycles * (fa1_tiles(L, causal) + math.ceil(L / FA1[2]["BLOCK_N"])) / clock


def naive_seconds(B, h, L, d_h, bytes_per_s, flop_per_s, size=2):
    """Return a model of the time of `attention.naive` with S and P beyond L2, from the speeds of a copy and of a GEMM.

    Its kernels move 4 B h (L^2 + L d_h) elements. P V hides its product behind the reading of P. Q K^T does not: a
    program writes a block of S after it has computed it. A causal mask saves nothing, since masked tiles are computed.

    >>> round(naive_seconds(1, 32, 4096, 128, 4.3e12, 756e12) * 1e3, 2)  # ms; Q K^T takes 0.18 of it
    1.21
    """
    return 4 * B * h * (L**2 + L * d_h) * size / bytes_per_s + 2 * B * h * L**2 * d_h / flop_per_s


# Versions ------------------------------------------------------------------------------------------------------------


def reference(q, k, v, causal):
    """Return softmax(Q K^T / sqrt(d_h)) V in float64."""
    k, v = (each.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
    s = q.double() @ k.transpose(-1, -2) * q.shape[-1] ** -0.5  # (B, h, L, L)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -float("inf"))
    return torch.softmax(s, dim=-1) @ v


def fa1(q, k, v, causal, out=None, config=None):
    """Return attention in FA1's schedule: one program per head; O, l and m go to global memory and back per tile."""
    B, h, h_kv, L, d_h = _shape(q, k, v)
    out, config = output(out, q), config or FA1[q.element_size()]
    o_part = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    l_and_m = torch.empty((2, B, h, L), dtype=torch.float32, device=q.device)
    fa1_kernel[(B * h,)](
        q, k, v, out, o_part, *l_and_m, L, h // h_kv, d_h**-0.5 * LOG2E.value, d_h, bool(causal), 4, **config
    )
    return out


def fa2(q, k, v, causal, out=None, lse=None, config=None):
    """Return attention in FA2's schedule: one program per block of queries, O in registers until it is done.

    lse, (B, h, L) in fp32, receives log(sum(exp(row of S))), all that the backward pass needs of S.
    """
    B, h, h_kv, L, d_h = _shape(q, k, v)
    out, config = output(out, q), config or FA2[q.element_size()]
    lse = _lse(lse, q)
    q_desc, o_desc = _blocks(config["BLOCK_M"], q=q, out=out)
    k_desc, v_desc = _blocks(config["BLOCK_N"], k=k, v=v)
    grid = (triton.cdiv(L, config["BLOCK_M"]) * B * h,)
    masked = bool(causal or L % config["BLOCK_N"])
    fa2_kernel[grid](
        q_desc, k_desc, v_desc, o_desc, lse, B * h, L, h // h_kv, d_h**-0.5 * LOG2E.value, d_h, bool(causal), masked,
        **config,
    )  # fmt: skip
    return out


def _lse(lse, q):
    shape = q.shape[:3]
    if lse is None:
        return torch.empty(shape, dtype=torch.float32, device=q.device)
    require(dtypes=(torch.float32,), lse=lse)
    if lse.shape != shape or lse.device != q.device:
        raise KernelError(f"lse is {tuple(lse.shape)} on {lse.device}; it needs {tuple(shape)} on {q.device}")
    return lse


def _blocks(rows, **tensors):
    """Return TMA descriptors of (heads, L, d_h) for `rows` rows of one head; beyond L they read 0 and write nothing."""
    for name, tensor in tensors.items():
        if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) < (9, 0):
            raise KernelError("this version needs TMA, sm_90 or later: use fa1")
        if tensor.data_ptr() % 16:
            raise KernelError(f"{name} starts {tensor.data_ptr() % 16} bytes off a multiple of 16: pass {name}.clone()")
    return [TensorDescriptor.from_tensor(x.view(-1, *x.shape[2:]), [1, rows, x.shape[3]]) for x in tensors.values()]


def _shape(q, k, v):
    """Return B, h, h_kv, L and d_h, or raise KernelError."""
    require(dtypes=DTYPES if INTERPRETED else DTYPES[1:], dims=4, q=q, k=k, v=v)
    B, h, L, d_h = q.shape
    h_kv = k.shape[1]
    if d_h not in HEAD_DIMS:
        raise KernelError(f"head dimension {d_h}; these kernels are written for 64 and 128: use attention.naive")
    if k.shape != v.shape:
        raise KernelError(f"v has shape {tuple(v.shape)}; it needs k's, {tuple(k.shape)}")
    if k.shape[2] != L:
        raise KernelError(f"q has {L} positions and k {k.shape[2]}; queries and keys must be of the same positions")
    if (B, d_h) != (k.shape[0], k.shape[3]) or h % h_kv:
        raise KernelError(f"k has shape {tuple(k.shape)}; with q it must be ({B}, a divisor of {h}, {L}, {d_h})")
    return B, h, h_kv, L, d_h


def fa2_backward(q, k, v, o, do, lse, causal, config=None):
    """Return dq, dk and dv from the forward pass's operands and results, equal bits in every run.

    `config` is a pair, of the kernel of dk and dv and of that of dq.
    """
    B, h, h_kv, L, d_h = _shape(q, k, v)
    require(q=q, o=o, do=do)
    same_shape(q=q, o=o, do=do)
    lse = _lse(lse, q)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for_keys, for_queries = config or (KEYS_VALUES[q.element_size()], QUERIES[q.element_size()])
    scale, padded = d_h**-0.5, triton.cdiv(L, 128) * 128
    rows = torch.empty((2, B * h, padded), dtype=torch.float32, device=q.device)  # what a row of S must know
    row_sums_kernel[(B * h, padded // 32)](o, do, lse, *rows, L, padded, d_h, 32, num_warps=4)
    BLOCK_M, BLOCK_N = for_keys["BLOCK_M"], for_keys["BLOCK_N"]
    grid = (triton.cdiv(L, BLOCK_N) * B * h_kv,)
    operands = *_blocks(BLOCK_M, q=q, do=do), *_blocks(BLOCK_N, k=k, v=v, dk=dk, dv=dv)
    keys_values_kernel[grid](*operands, *rows, B * h_kv, L, padded, h // h_kv, scale, d_h, bool(causal), **for_keys)
    BLOCK_M, BLOCK_N = for_queries["BLOCK_M"], for_queries["BLOCK_N"]
    grid = (triton.cdiv(L, BLOCK_M) * B * h,)
    operands = *_blocks(BLOCK_M, q=q, do=do, dq=dq), *_blocks(BLOCK_N, k=k, v=v)
    queries_kernel[grid](*operands, *rows, B * h, L, padded, h // h_kv, scale, d_h, bool(causal), **for_queries)
    return dq, dk, dv


# Kernels -------------------------------------------------------------------------------------------------------------


@triton.jit
def place_of(blocks, heads, HEADS: tl.constexpr):
    """Return this program's head and block: HEADS heads take turns, block after block."""
    first = tl.program_id(0) // (blocks * HEADS) * HEADS
    turn = tl.program_id(0) - first * blocks
    size = min(heads - first, HEADS)
    return first + turn % size, turn // size


@triton.jit
def sum_of_warps(parts):
    """Return the sum of (4, M, N) over its first dimension, (M, N)."""
    # tl.sum would bring the four parts of one element into four threads, with stores that hit one bank 8 times: 4096
    # cycles for 16 x 128. tl.split brings them into one thread, in words of 16 bytes: 512.
    M: tl.constexpr = parts.shape[1]
    N: tl.constexpr = parts.shape[2]
    even, odd = tl.split(tl.reshape(tl.permute(parts, (1, 2, 0)), (M, N, 2, 2)))
    first, second = tl.split(even + odd)
    return first + second


# One program: one head, all of its queries and keys.
# Grid: B h programs; with fewer heads than SMs the others have nothing to do.
# HBM traffic per program: K and V once; Q, O, l and m for each block of BLOCK_N keys, unless L2 holds them: fa1_bytes.
# This version: FA1. K and V are split over the warps, "split-K": each has a part of O, and they must add them up.
@triton.jit
def fa1_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, o_ptr, l_ptr, m_ptr, L, group, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, WARPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    q_rows = head.to(tl.int64) * L  # rows of Q, O, l and m before this head
    kv_rows = (head // group).to(tl.int64) * L
    offs_d = tl.arange(0, D)
    # Triton does not let a kernel place warps. But of a product with a leading dimension of WARPS it gives one to each
    # warp, and computes it with mma.sync, from registers, as FA1 did on sm_80; wgmma has no such split.
    keys = tl.arange(0, WARPS)[:, None] * (BLOCK_N // WARPS) + tl.arange(0, BLOCK_N // WARPS)[None, :]
    for start_n in range(0, L, BLOCK_N):  # the outer loop
        offs_n = start_n + keys  # (WARPS, BLOCK_N / WARPS)
        kv_offs = (kv_rows + offs_n)[:, :, None] * D + offs_d[None, None, :]
        kv_mask = (offs_n < L)[:, :, None]
        k = tl.load(k_ptr + kv_offs, mask=kv_mask, other=0.0)  # (WARPS, BLOCK_N / WARPS, D)  HBM: read once
        v = tl.load(v_ptr + kv_offs, mask=kv_mask, other=0.0)
        # When causal, earlier queries see none of these keys.
        for start_m in range(start_n if CAUSAL else 0, L, BLOCK_M):  # the inner loop
            offs_m = start_m + tl.arange(0, BLOCK_M)
            rows = q_rows + offs_m
            row_mask = offs_m < L
            offs = rows[:, None] * D + offs_d[None, :]
            mask = row_mask[:, None]
            q = tl.load(q_ptr + offs, mask=mask, other=0.0)  # (BLOCK_M, D)  read again for each block of keys
            # Nothing to read at the first block of keys.
            earlier = row_mask & (start_n > 0)
            m_old = tl.load(m_ptr + rows, mask=earlier, other=-float("inf"))  # (BLOCK_M,)
            l_old = tl.load(l_ptr + rows, mask=earlier, other=0.0)
            o_old = tl.load(o_ptr + offs, mask=earlier[:, None], other=0.0)  # (BLOCK_M, D)

            q_of_all = tl.broadcast_to(q[None, :, :], (WARPS, BLOCK_M, D))  # every warp sees all of Q
            s = tl.dot(q_of_all, tl.permute(k, (0, 2, 1)), input_precision="ieee") * scale  # (WARPS, BLOCK_M, keys)
            seen = (offs_m[None, :, None] >= offs_n[:, None, :]) if CAUSAL else (offs_n < L)[:, None, :]
            s = tl.where(seen, s, -float("inf"))
            m_tile = tl.max(tl.max(s, axis=2), axis=0)  # within a warp, then between warps through shared memory
            p = tl.exp2(s - m_tile[None, :, None])  # each row sees this block's first key: m_tile is finite
            l_tile = tl.sum(tl.sum(p, axis=2), axis=0)
            o_parts = tl.dot(p.to(v.dtype), v, input_precision="ieee")  # (WARPS, BLOCK_M, D)
            o_tile = sum_of_warps(o_parts)  # (BLOCK_M, D)  the price of split-K

            m = tl.maximum(m_old, m_tile)
            alpha = l_old * tl.exp2(m_old - m)
            beta = tl.exp2(m_tile - m)
            l_new = alpha + beta * l_tile
            o = o_old * (alpha / l_new)[:, None] + o_tile * (beta / l_new)[:, None]  # normalised each time
            last = start_m < start_n + BLOCK_N if CAUSAL else start_n + BLOCK_N >= L
            if last:
                tl.store(out_ptr + offs, o.to(out_ptr.dtype.element_ty), mask=mask)  # HBM: written once
            else:
                tl.store(o_ptr + offs, o, mask=mask)  # written for each block of keys but the last
                tl.store(l_ptr + rows, l_new, mask=row_mask)
                tl.store(m_ptr + rows, m, mask=row_mask)
        tl.debug_barrier()  # other threads read what was written here


# One program: BLOCK_M queries of one head.
# Grid: ceil(L / BLOCK_M) B h programs, the longest first when causal; HEADS heads take turns.
# HBM traffic per program: reads BLOCK_M d_h of Q, writes as much of O and BLOCK_M of lse; L2 has most of K and V.
# This version: FA2. O stays in registers, is divided by l once, and each warp has its own rows: they exchange nothing.
@triton.jit
def fa2_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, heads, L, group, scale, D: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(L, BLOCK_M)
    head, block = place_of(blocks, heads, HEADS)
    if CAUSAL:
        block = blocks - 1 - block
    start_m = block * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q = q_desc.load([head, start_m, 0]).reshape(BLOCK_M, D)
    # m is -inf until the first tile; that holds key 0, which every query sees, so that no -inf is subtracted from -inf.
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l_sum = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, D), tl.float32)
    end = min(start_m + BLOCK_M, L) if CAUSAL else L
    whole = (start_m if CAUSAL else L) // BLOCK_N * BLOCK_N  # keys in tiles without a mask
    for masked in tl.static_range(2 if MASKED else 1):
        for start_n in range(whole if masked else 0, end if masked else whole, BLOCK_N):
            k = k_desc.load([head // group, start_n, 0]).reshape(BLOCK_N, D)
            s = tl.dot(q, k.T, input_precision="ieee")  # (BLOCK_M, BLOCK_N)  2 BLOCK_M BLOCK_N d_h FLOP
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)
                seen = (offs_m[:, None] >= offs_n[None, :]) if CAUSAL else (offs_n < L)[None, :]
                s = tl.where(seen, s, -float("inf"))
            m_new = tl.maximum(m, tl.max(s, axis=1) * scale)
            p = tl.exp2(s * scale - m_new[:, None])  # one multiply-add, one exp2
            alpha = tl.exp2(m - m_new)
            l_sum = l_sum * alpha + tl.sum(p, axis=1)
            o = o * alpha[:, None]
            v = v_desc.load([head // group, start_n, 0]).reshape(BLOCK_N, D)
            o = tl.dot(p.to(v.dtype), v, o, input_precision="ieee")  # (BLOCK_M, D)  2 BLOCK_M BLOCK_N d_h FLOP
            m = m_new
    o = o / l_sum[:, None]
    o_desc.store([head, start_m, 0], o.to(o_desc.dtype).reshape(1, BLOCK_M, D))  # HBM: written
    lse = (m + tl.log2(l_sum)) / LOG2E  # the natural logarithm
    tl.store(lse_ptr + head.to(tl.int64) * L + offs_m, lse, mask=offs_m < L)


# One program: ROWS rows of O and dO of one head.
# Grid: (B h, rows of a head, up to a multiple of 128, / ROWS).
# HBM traffic per program: reads 2 ROWS d_h elements and ROWS of lse, writes 2 ROWS of fp32.
# This version: delta = rowsum(dO O) = rowsum(dP P), a sum over each row in softmax's derivative; lse for base 2.
@triton.jit
def row_sums_kernel(o_ptr, do_ptr, lse_ptr, lse2_ptr, delta_ptr, L, padded, D: tl.constexpr, ROWS: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mask = offs < L
    elements = (head * L + offs)[:, None] * D + tl.arange(0, D)[None, :]
    o = tl.load(o_ptr + elements, mask=mask[:, None], other=0.0).to(tl.float32)
    do = tl.load(do_ptr + elements, mask=mask[:, None], other=0.0).to(tl.float32)
    # Beyond L lse is infinite, so that P is zero there.
    lse = tl.load(lse_ptr + head * L + offs, mask=mask, other=float("inf"))
    tl.store(delta_ptr + head * padded + offs, tl.sum(o * do, axis=1))
    tl.store(lse2_ptr + head * padded + offs, lse * LOG2E)


# One program: BLOCK_N keys of one head of K and V.
# Grid: ceil(L / BLOCK_N) B h_kv programs, the longest first when causal.
# HBM traffic per program: reads 2 BLOCK_N d_h of K and V, writes as much; L2 has most of Q and dO of the group's heads.
# This version: S and dP are computed again, transposed, so that P^T and dS^T stay in registers; no atomic additions.
@triton.jit
def keys_values_kernel(
    q_desc, do_desc, k_desc, v_desc, dk_desc, dv_desc, lse2_ptr, delta_ptr, heads, L, padded, group, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    scale2 = scale * LOG2E
    blocks = tl.cdiv(L, BLOCK_N)
    head, block = place_of(blocks, heads, HEADS)
    start_n = block * BLOCK_N
    offs_n = start_n + tl.arange(0, BLOCK_N)
    k = k_desc.load([head, start_n, 0]).reshape(BLOCK_N, D)
    v = v_desc.load([head, start_n, 0]).reshape(BLOCK_N, D)
    dk = tl.zeros((BLOCK_N, D), tl.float32)
    dv = tl.zeros((BLOCK_N, D), tl.float32)
    # When causal, queries before `begin` see none of these keys, and those from `whole` on see all of them.
    begin = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    whole = min(tl.cdiv(start_n + BLOCK_N, BLOCK_M) * BLOCK_M, tl.cdiv(L, BLOCK_M) * BLOCK_M) if CAUSAL else 0
    # Without this, a path on which dk and dv are zeros makes ptxas run one wgmma at a time (its warning C7515).
    tl.assume(begin < (whole if CAUSAL else L))
    for member in range(group):  # the heads of Q that share these keys: their gradients add up here, in one order
        q_head = head * group + member
        row = q_head.to(tl.int64) * padded
        for masked in tl.static_range(1 if CAUSAL else 0, -1, -1):
            for start_m in range(begin if masked else whole, whole if masked else L, BLOCK_M):
                offs_m = start_m + tl.arange(0, BLOCK_M)
                lse2 = tl.load(lse2_ptr + row + offs_m)  # (BLOCK_M,)
                delta = tl.load(delta_ptr + row + offs_m)
                q = q_desc.load([q_head, start_m, 0]).reshape(BLOCK_M, D)
                s = tl.dot(k, q.T, input_precision="ieee")  # S^T, (BLOCK_N, BLOCK_M)
                p = tl.exp2(s * scale2 - lse2[None, :])  # P^T: rows beyond L are zero, keys beyond L never written
                if masked:
                    p = tl.where(offs_m[None, :] >= offs_n[:, None], p, 0.0)
                do = do_desc.load([q_head, start_m, 0]).reshape(BLOCK_M, D)
                dp = tl.dot(v, do.T, input_precision="ieee")
                ds = p * (dp - delta[None, :])
                dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")  # (BLOCK_N, D)
                dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    dv_desc.store([head, start_n, 0], dv.to(dv_desc.dtype).reshape(1, BLOCK_N, D))  # HBM: written
    dk_desc.store([head, start_n, 0], (dk * scale).to(dk_desc.dtype).reshape(1, BLOCK_N, D))


# One program: BLOCK_M queries of one head.
# Grid: ceil(L / BLOCK_M) B h programs, the longest first when causal.
# HBM traffic per program: reads 2 BLOCK_M d_h of Q and dO, writes BLOCK_M d_h; L2 has most of K and V.
# This version: S and dP are computed once more; with both results in one kernel, dQ would need atomic additions.
@triton.jit
def queries_kernel(
    q_desc, do_desc, dq_desc, k_desc, v_desc, lse2_ptr, delta_ptr, heads, L, padded, group, scale,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    scale2 = scale * LOG2E
    blocks = tl.cdiv(L, BLOCK_M)
    head, block = place_of(blocks, heads, HEADS)
    if CAUSAL:
        block = blocks - 1 - block
    start_m = block * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    row = head.to(tl.int64) * padded
    lse2 = tl.load(lse2_ptr + row + offs_m)  # (BLOCK_M,)
    delta = tl.load(delta_ptr + row + offs_m)
    q = q_desc.load([head, start_m, 0]).reshape(BLOCK_M, D)
    do = do_desc.load([head, start_m, 0]).reshape(BLOCK_M, D)
    dq = tl.zeros((BLOCK_M, D), tl.float32)
    end = min(start_m + BLOCK_M, L) if CAUSAL else L
    whole = start_m // BLOCK_N * BLOCK_N if CAUSAL else L
    for masked in tl.static_range(2 if CAUSAL else 1):
        # Keys beyond L are zero, and so add nothing to dQ.
        for start_n in range(whole if masked else 0, end if masked else whole, BLOCK_N):
            k = k_desc.load([head // group, start_n, 0]).reshape(BLOCK_N, D)
            s = tl.dot(q, k.T, input_precision="ieee")  # (BLOCK_M, BLOCK_N)
            p = tl.exp2(s * scale2 - lse2[:, None])
            if masked:
                offs_n = start_n + tl.arange(0, BLOCK_N)
                p = tl.where(offs_m[:, None] >= offs_n[None, :], p, 0.0)
            v = v_desc.load([head // group, start_n, 0]).reshape(BLOCK_N, D)
            dp = tl.dot(do, v.T, input_precision="ieee")
            ds = p * (dp - delta[:, None])
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")  # (BLOCK_M, D)
    dq_desc.store([head, start_m, 0], (dq * scale).to(dq_desc.dtype).reshape(1, BLOCK_M, D))  # HBM: written
