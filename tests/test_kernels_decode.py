"""The kernels of a decode step against float64 references, alone and in a row; without a GPU, in the interpreter."""

import contextlib
from collections import Counter

import pytest
import torch

from rooflab import decoder
from rooflab.kernels import KernelError, check, decode, gemv
from rooflab.kernels._triton import INTERPRETED, tl, triton
from rooflab.models import load

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NAN = float("nan")
pytestmark = pytest.mark.filterwarnings(
    "ignore:(invalid value|overflow|divide by zero|All-NaN slice) encountered:RuntimeWarning"
)


def normal(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).to(DEVICE)


def poison(*shape, dtype=torch.float32):
    return torch.full(shape, NAN, dtype=dtype, device=DEVICE)


def at(*positions, dtype=torch.int64):
    return torch.tensor(positions, dtype=dtype, device=DEVICE)


def caches(B, h_kv, capacity, d_h, position, dtype=torch.float32, scale=1.0):
    """Return K and V up to the position of each sequence, and NaN behind it."""
    both = []
    for seed in (1, 2):
        cache = normal(B, h_kv, capacity, d_h, dtype=dtype, seed=seed, scale=scale if seed == 1 else 1.0)
        for b, last in enumerate(position.expand(B).tolist()):
            cache[b, :, last + 1 :] = NAN
        both.append(cache)
    return both


def angles(capacity, d_h, dtype=torch.float32):
    rate = 1e4 ** (-torch.arange(0, d_h, 2, dtype=torch.float64) / d_h)
    angle = torch.arange(capacity, dtype=torch.float64)[:, None] * torch.cat((rate, rate))
    return angle.cos().to(dtype).to(DEVICE), angle.sin().to(dtype).to(DEVICE)


def check_attention(out, q, k, v, position):
    reference = decode.attention_reference(q, k, v, position)
    largest = v.nan_to_num(0).abs().max().item()
    if out.dtype == torch.float32:
        # An error of a logit is an error of that share of its exponential.
        logit = (q.norm(dim=-1).max() * k.nan_to_num(0).norm(dim=-1).max()).item() * q.shape[-1] ** -0.5
        return check(out, reference, dtype="fp32", length=k.shape[2] + q.shape[-1], scale=(1 + logit) * largest)
    # P is rounded to 16 bits before the product with V: by at most u, and its weights add up to 1.
    return check(out, reference, dtype=out.dtype, length=1, scale=largest / 4, accumulate=out.dtype)


# Norm ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (1, 127), (3, 1000), (1, 4096), (2, 16384)], ids=str)
def test_add_norm(shape, dtype):
    x, residual = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    weight, before = normal(shape[1], dtype=dtype, seed=2), residual.clone()
    y = decode.add_norm(x, residual, weight, 1e-5, out=poison(*shape, dtype=dtype))
    total, _ = decode.add_norm_reference(x, before, weight, 1e-5)
    check(residual, total, dtype=dtype, length=1)
    # What is normalised is the stored sum, and its norm is rounded before the weight comes in.
    _, reference = decode.add_norm_reference(None, residual, weight, 1e-5)
    check(y, reference, dtype=dtype, length=1 if dtype != torch.float32 else shape[1], accumulate=dtype)
    stored = residual.clone()
    assert torch.equal(decode.add_norm(None, residual, weight, 1e-5, out=poison(*shape, dtype=dtype)), y)
    assert torch.equal(residual, stored), "the first norm adds nothing"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_add_norm_rounds_where_llama_does(dtype):
    x, residual, weight = (normal(3, 1000, dtype=dtype, seed=seed) for seed in range(3))
    expected = x + residual
    total = expected.float()
    total = (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5)).to(dtype) * weight[0]
    y = decode.add_norm(x, residual, weight[0].contiguous(), 1e-5)
    assert torch.equal(residual, expected)
    # A sum of squares in another order may round a few elements the other way.
    assert (y == total).float().mean().item() > 0.995


# Rotation and cache --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("B", "h", "h_kv", "d_h", "capacity", "positions"), [
    (1, 1, 1, 16, 1, [0]), (1, 4, 1, 64, 7, [6]), (3, 4, 2, 128, 5, [3]), (3, 2, 2, 64, 9, [0, 8, 4]),
], ids=str)  # fmt: skip
def test_rope_cache(B, h, h_kv, d_h, capacity, positions, dtype):
    qkv = normal(B, (h + 2 * h_kv) * d_h, dtype=dtype)
    q, k, v = qkv.view(B, -1, d_h).split((h, h_kv, h_kv), dim=1)
    for table, index in ((dtype, torch.int64), (torch.float32, torch.int32)):
        cos, sin = angles(capacity + 2, d_h, table)
        position = at(*positions, dtype=index)
        k_cache, v_cache = poison(B, h_kv, capacity, d_h, dtype=dtype), poison(B, h_kv, capacity, d_h, dtype=dtype)
        out = poison(B, h, d_h, dtype=dtype)
        assert decode.rope_cache(qkv, cos, sin, position, k_cache, v_cache, h, out=out) is out
        where = position.expand(B).long()
        check(out, decode.rotate_reference(q, cos[where], sin[where]), dtype=dtype, length=2)
        new_k, new_v = (cache[torch.arange(B), :, where] for cache in (k_cache, v_cache))
        check(new_k, decode.rotate_reference(k, cos[where], sin[where]), dtype=dtype, length=2)
        assert torch.equal(new_v, v)
        for cache in (k_cache, v_cache):
            assert cache.isfinite().sum() == B * h_kv * d_h, "one position of each sequence is written"


def test_rotation_is_that_of_transformers():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    B, h, h_kv, d_h = 2, 4, 2, 64
    cos, sin = angles(8, d_h)
    qkv, position = normal(B, (h + 2 * h_kv) * d_h), at(5, 7)
    cache = torch.zeros(B, h_kv, 8, d_h, device=DEVICE)
    q = decode.rope_cache(qkv, cos, sin, position, cache, cache.clone(), h)
    heads = qkv.view(B, -1, 1, d_h)
    expected_q, expected_k = llama.apply_rotary_pos_emb(
        heads[:, :h], heads[:, h : h + h_kv], cos[position][:, None], sin[position][:, None]
    )
    check(q, expected_q[:, :, 0].double(), dtype="fp32", length=4)
    check(cache[torch.arange(B), :, position], expected_k[:, :, 0].double(), dtype="fp32", length=4)


@pytest.mark.parametrize("position", [4, 5, 2**31 + 1, -1])
def test_a_full_cache_is_left_alone(position):
    cos, sin = angles(4, 16)
    memory = torch.zeros(2, 3, 2, 4, 16, device=DEVICE)
    k_cache, v_cache = memory[:, 1:2]  # the middle: around it, a write out of bounds would show
    q = decode.rope_cache(normal(1, 6 * 16), cos, sin, at(position), k_cache, v_cache, 2)
    assert q.isnan().all() and not memory.any()


# Beside the block of 1024 of K: less, exactly one, one and a bit.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize(("h", "h_kv", "d_h", "K", "capacity", "last"), [
    (1, 1, 16, 8, 1, 0), (4, 2, 32, 1000, 5, 3), (3, 1, 64, 1024, 7, 6), (1, 1, 128, 1100, 3, 1),
], ids=str)  # fmt: skip
def test_qkv_cache(h, h_kv, d_h, K, capacity, last, normed, dtype):
    rows, eps = (h + 2 * h_kv) * d_h, 0.5
    x, weight = normal(1, K, dtype=dtype), normal(rows, K, dtype=dtype, seed=1, scale=K**-0.5)
    y = normal(1, K, seed=2) * 3  # x is its product with the norm's weights, so any y may stand behind the squares
    squares = torch.stack([part.square().sum() for part in y[0].split(7)]) if normed else None
    divisor = torch.rsqrt(y.double().square().mean() + eps) if normed else 1.0
    product = gemv.reference(x, weight) * divisor
    q, k, v = product.view(1, -1, d_h).split((h, h_kv, h_kv), dim=1)
    table, index = (dtype, torch.int64) if normed else (torch.float32, torch.int32)
    cos, sin = angles(capacity + 2, d_h, table)
    rotary = {"cos": cos, "sin": sin, "position": at(last, dtype=index), "h": h}
    (k_cache, v_cache), two = ([poison(1, h_kv, capacity, d_h, dtype=dtype) for _ in range(2)] for _ in range(2))
    out = poison(1, h, d_h, dtype=dtype)
    assert decode.qkv_cache(x, weight, squares, **rotary, k_cache=k_cache, v_cache=v_cache, eps=eps, out=out) is out
    # The product is rounded, and the rotation then adds two of them.
    size = {"dtype": dtype, "length": K + 2, "scale": product.abs().max().item() * 2**0.5, "accumulate": dtype}
    cos, sin = cos[last : last + 1], sin[last : last + 1]
    check(out, decode.rotate_reference(q, cos, sin), **size)
    check(k_cache[:, :, last], decode.rotate_reference(k, cos, sin), **size)
    check(v_cache[:, :, last], v, dtype=dtype, length=K, scale=product.abs().max().item())
    for cache in (k_cache, v_cache):
        assert cache.isfinite().sum() == h_kv * d_h, "one position is written"
    # The same from two kernels, but for the order of the sums over K.
    again = decode.rope_cache(gemv.normed(x, weight, squares, eps), **rotary, k_cache=two[0], v_cache=two[1])
    for found, expected in ((out, again), (k_cache, two[0]), (v_cache, two[1])):
        check(found, expected.double(), **size)


@pytest.mark.parametrize("position", [4, 5, 2**31 + 1, -1])
def test_qkv_cache_leaves_a_full_cache_alone(position):
    (cos, sin), memory = angles(4, 16), torch.zeros(2, 3, 2, 4, 16, device=DEVICE)
    k_cache, v_cache = memory[0, 1:2], memory[1, 1:2]  # around them, a write out of bounds would show
    q = decode.qkv_cache(normal(1, 40), normal(96, 40), None, cos, sin, at(position), k_cache, v_cache, 2)
    assert q.shape == (1, 2, 16) and q.isnan().all() and not memory.any()


def test_q_may_replace_itself():
    cos, sin = angles(8, 64)
    qkv, cache = normal(1, 6 * 64), torch.zeros(1, 1, 8, 64, device=DEVICE)
    expected = decode.rope_cache(qkv, cos, sin, at(3), cache, cache.clone(), 4)
    inside = qkv[:, : 4 * 64].view(1, 4, 64)
    decode.rope_cache(qkv, cos, sin, at(3), cache, cache.clone(), 4, out=inside)
    assert torch.equal(inside, expected)


# Attention -----------------------------------------------------------------------------------------------------------


# The blocks hold 64 (d_h = 64) and 32 keys (128) in 16 bits, half of that in fp32.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("B", "h", "h_kv", "d_h", "capacity", "positions", "splits"), [
    (1, 1, 1, 64, 1, [0], None), (1, 4, 1, 64, 70, [0], 3), (1, 2, 2, 128, 70, [1], 2), (3, 4, 1, 64, 200, [62], 1),
    (1, 8, 1, 128, 200, [63], 5), (1, 4, 4, 64, 200, [64], 2), (3, 8, 2, 64, 333, [332, 0, 100], 3),
    (1, 8, 1, 64, 300, [298], None), (1, 6, 2, 128, 130, [129], 1), (1, 1, 1, 128, 150, [140], 9),
    (1, 17, 1, 16, 300, [290], 2),
], ids=str)  # fmt: skip
def test_attention(B, h, h_kv, d_h, capacity, positions, splits, dtype):
    position = at(*positions)
    q, (k, v) = normal(B, h, d_h, dtype=dtype), caches(B, h_kv, capacity, d_h, position, dtype)
    out = poison(B, h, d_h, dtype=dtype)
    assert decode.split_attention(q, k, v, position, out=out, splits=splits) is out
    check_attention(out, q, k, v, position)


def test_attention_of_one_position_is_its_value():
    position = at(0)
    q, (k, v) = normal(2, 4, 64, dtype=torch.bfloat16), caches(2, 2, 9, 64, position, torch.bfloat16)
    for splits in (1, 2):
        out = decode.split_attention(q, k, v, position, splits=splits)
        assert torch.equal(out.view(2, 2, 2, 64), v[:, :, :1].expand(2, 2, 2, 64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_with_large_logits(dtype):
    position = at(200)
    q, (k, v) = normal(1, 4, 64, dtype=dtype, scale=60), caches(1, 1, 256, 64, position, dtype, scale=20)
    k[0, 0, 77] = q[0, 2] * 2  # in the middle, far above all others
    for splits in (1, 4):
        out = decode.split_attention(q, k, v, position, splits=splits)
        check_attention(out, q, k, v, position)
        assert torch.equal(out[0, 2], v[0, 0, 77])


def test_attention_beyond_the_capacity_takes_the_whole_cache():
    q, (k, v) = normal(1, 2, 64), caches(1, 1, 70, 64, at(69))
    for splits in (1, 3):
        assert torch.equal(
            decode.split_attention(q, k, v, at(75), splits=splits),
            decode.split_attention(q, k, v, at(69), splits=splits),
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_an_empty_part_holds_is_not_used(dtype, monkeypatch):
    position, empty = at(40), torch.empty
    q, (k, v) = normal(1, 4, 64, dtype=dtype), caches(1, 1, 512, 64, position, dtype)

    def poisoned(*shape, **options):
        return empty(*shape, **options).fill_(NAN)

    monkeypatch.setattr(torch, "empty", poisoned)
    out = decode.split_attention(q, k, v, position, splits=8)
    monkeypatch.undo()
    check_attention(out, q, k, v, position)


def test_attention_plan():
    def plan(heads, capacity, early=False, size=2):
        return decode.attention_plan(heads, capacity, size, 132, early)

    assert plan(8, 4096) == (decode.ONE_WARP, 49), "three programs for each of 132 SMs: 396 for 8 heads"
    assert plan(8, 4096, early=True) == (decode.ONE_WARP, 66)
    assert plan(8, 32768, early=True) == (decode.DEEP, 33)
    assert plan(1, 64, size=4) == (decode.FP32, 396)
    assert plan(2000, 64, size=4) == (decode.FP32, 1)
    for early in (False, True):
        assert plan(256, 4096, early) == (decode.TWO_WARPS, 1), "all at once"
        assert plan(256, 32768, early) == (decode.WIDE, 1), "all at once"
        assert plan(512, 4096, early) == (decode.ONE_WARP, 1), "all at once"
        assert plan(512, 32768, early) == (decode.WIDE, 4), "2048 programs, in five rounds of 396"
        assert plan(2048, 1024, early) == (decode.WIDE, 1)


def test_a_context_has_no_more_parts_than_blocks(monkeypatch):
    monkeypatch.setattr(decode, "sm_count", lambda device: 1000)
    q, (k, v) = normal(1, 2, 64), caches(1, 1, 70, 64, at(69))
    seen = []
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: seen.append(shape) or torch.zeros(*shape, **options))
    check_attention(decode.split_attention(q, k, v, at(69)), q, k, v, at(69))
    assert (2, 3, 64) in [shape[0] for shape in seen if shape and isinstance(shape[0], tuple)], "32 keys to a block"


# SwiGLU --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (3, 254), (1, 2048), (3, 4098)], ids=str)
def test_swiglu(shape, dtype):
    gate_up = normal(*shape, dtype=dtype, scale=3)
    gate_up[0, 0] = -200  # its exponential overflows
    out = decode.swiglu(gate_up, out=poison(shape[0], shape[1] // 2, dtype=dtype))
    check(out, decode.swiglu_reference(gate_up), dtype=dtype, length=4)


# Early starts --------------------------------------------------------------------------------------------------------

EARLIER = {"w_ptr", "norm_ptr", "weight_ptr", "cos_ptr", "sin_ptr", "position_ptr"}  # no kernel of a step writes these
interpreted = pytest.mark.skipif(not INTERPRETED, reason="a GPU starts kernels early by itself: see tests/gpu")


class Overlap:
    """Launches in the interpreter, where a program that started early sees NaN until it waits.

    NaN stands in all that kernels of a step write: whole tensors, but only the newest token's keys and values for the
    kernel that reads the others. The program must leave it there, say that the next kernel may start, and wait.
    """

    def __init__(self, launch, begin):
        self.launch, self.begin = launch, begin
        self.started = Counter()  # programs, by kernel
        self.written = None  # by others, where the kernel that runs may start early
        self.hidden, self.signalled = [], True  # tensors with their values, of a program that has not waited

    def run(self, kernel, *args, **options):
        self.kernel, values = kernel.__name__, dict(zip(kernel.arg_names, args, strict=False)) | options
        written = {name: each for name, each in values.items() if torch.is_tensor(each) and name not in EARLIER}
        if self.kernel == "split_kernel":
            last = values["position_ptr"].expand(len(values["k_ptr"])).clamp(max=values["capacity"] - 1).tolist()
            for name in ("k_ptr", "v_ptr"):
                cache = written.pop(name)
                written |= {(name, b): cache[b, :, newest] for b, newest in enumerate(last) if newest >= 0}
        self.written = list(written.values()) if values.get("EARLY") else None
        self.launch(kernel, *args, **options)
        self.end()

    def program(self, *index):
        self.end()
        self.begin(*index)
        if self.written is not None:
            self.started[self.kernel] += 1
            self.signalled, self.hidden = False, [(each, each.clone()) for each in self.written]
            for each in self.written:
                each.fill_(NAN)

    def signal(self):
        self.signalled = True

    def wait(self):
        assert all(each.isnan().all() for each, _ in self.hidden), f"{self.kernel} writes before it waits"
        for each, value in self.hidden:
            each.copy_(value)
        self.hidden = []

    def end(self):
        assert not self.hidden, f"{self.kernel} never waits"
        assert self.signalled, f"{self.kernel} holds up the next kernel"


@contextlib.contextmanager
def overlapping(monkeypatch):
    """Let kernels start early in the interpreter; see Overlap."""
    interpreter = triton.runtime.interpreter
    overlap = Overlap(interpreter.InterpretedFunction.run, interpreter.interpreter_builder.set_grid_idx)
    with monkeypatch.context() as patch:
        patch.setattr(gemv, "can_start_early", lambda x: True)
        patch.setattr(interpreter.InterpretedFunction, "run", lambda *args, **options: overlap.run(*args, **options))
        patch.setattr(interpreter.interpreter_builder, "set_grid_idx", overlap.program)
        patch.setattr(tl.extra.cuda, "gdc_launch_dependents", overlap.signal)
        patch.setattr(tl.extra.cuda, "gdc_wait", overlap.wait)
        yield overlap


def chained(N, K, dtype, early):
    return [gemv.chained(normal(1, K, dtype=dtype), normal(N, K, dtype=dtype, seed=1))]


def added(N, K, dtype, early):
    x, weight = normal(1, K, dtype=dtype), normal(N, K, dtype=dtype, seed=1)
    residual, norm = normal(1, N, dtype=dtype, seed=2), normal(N, dtype=dtype, seed=3)
    return gemv.added(x, weight, residual, norm, out=residual, early=early)


def normed(N, K, sums, gated, dtype, early):
    squares = normal(sums, seed=2).square() if sums else None
    x, weight = normal(1, K, dtype=dtype), normal(2 * N, K, dtype=dtype, seed=1)
    return [gemv.normed(x, weight, squares, gated=gated, early=early)]


def qkv_cache(K, sums, position, dtype, early):
    squares, (cos, sin) = normal(sums, seed=2).square() if sums else None, angles(9, 32)
    k, v = normal(2, 1, 2, 9, 32, dtype=dtype, seed=3)
    x, weight = normal(1, K, dtype=dtype), normal(8 * 32, K, dtype=dtype, seed=1)
    return [decode.qkv_cache(x, weight, squares, cos, sin, at(position), k, v, 4, early=early), k, v]


def rope_cache(positions, dtype, early):
    B, (cos, sin) = 3, angles(9, 32)
    k, v = normal(2, B, 2, 9, 32, dtype=dtype, seed=3)
    qkv = normal(B, 8 * 32, dtype=dtype)
    return [decode.rope_cache(qkv, cos, sin, at(*positions), k, v, 4, early=early), k, v]


def add_norm(add, dtype, early):
    x, residual, weight = normal(3, 300, dtype=dtype), normal(3, 300, dtype=dtype, seed=1), normal(300, dtype=dtype)
    return [decode.add_norm(x if add else None, residual, weight, 1e-5, early=early), residual]


def swiglu(dtype, early):
    return [decode.swiglu(normal(3, 2100, dtype=dtype), early=early)]


def split_late(dtype, early):
    """Attention that does not start early itself, but lets `combine` do so."""
    q, (k, v) = normal(1, 4, 64, dtype=dtype), caches(1, 1, 300, 64, at(290), dtype)
    return [decode.split_attention(q, k, v, at(290), splits=3)]


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("call", "arguments", "kernel"), [
    (chained, (5, 2100), "chained_kernel"),
    *((added, shape, "added_rows_kernel") for shape in ((9, 40), (9, 1024), (6, 1100), (6, 5000))),
    *((normed, (7, K, *how), "normed_rows_kernel") for K, *how in ((40, 0, False), (1024, 3, True), (5000, 9, True))),
    *((qkv_cache, how, "qkv_cache_kernel") for how in ((40, 0, 8), (2100, 5, 0), (40, 2, 9))),
    *((rope_cache, (positions,), "rope_cache_kernel") for positions in ([3], [0, 8, 9])),
    *((add_norm, (add,), "add_norm_kernel") for add in (False, True)),
    (swiglu, (), "swiglu_kernel"),
    (split_late, (), "combine_kernel"),
], ids=lambda each: getattr(each, "__name__", None) or str(each))  # fmt: skip
def test_nothing_is_read_before_the_wait(call, arguments, kernel, dtype, monkeypatch):
    late = call(*arguments, dtype, False)
    with overlapping(monkeypatch) as overlap:
        early = call(*arguments, dtype, True)
    assert set(overlap.started) == {kernel}
    assert all(torch.equal(*(each.nan_to_num(nan=7e7) for each in pair)) for pair in zip(early, late, strict=True))


# The blocks hold 64 keys, of 4 key heads 128, in fp32 32. The newest is alone, full, of one key, or ragged.
@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("B", "h", "h_kv", "capacity", "positions", "splits"), [
    (1, 4, 1, 70, [0], 1), (1, 4, 1, 70, [0], 9), (1, 2, 2, 200, [63], 1), (1, 2, 2, 200, [64], 2),
    (1, 4, 1, 300, [290], 1), (1, 4, 1, 300, [290], 3), (1, 4, 1, 300, [128], 16), (2, 4, 2, 300, [5, 299], 1),
    (2, 4, 2, 300, [200, 31], 4), (2, 4, 2, 300, [128], 2),
    (3, 2, 1, 200, [100], None), (1, 2, 1, 200, [199], 7), (1, 4, 1, 640, [639], 5),
    (1, 8, 2, 64, [63], 2),
], ids=str)  # fmt: skip
def test_attention_waits_for_q_and_the_newest_block(B, h, h_kv, capacity, positions, splits, dtype, monkeypatch):
    position = at(*positions)
    q, (k, v) = normal(B, h, 64, dtype=dtype), caches(B, h_kv, capacity, 64, position, dtype)
    before = [each.clone() for each in (q, k, v)]
    with overlapping(monkeypatch) as overlap:
        out = decode.split_attention(q, k, v, position, out=poison(B, h, 64, dtype=dtype), splits=splits, early=True)
    assert set(overlap.started) == {"split_kernel"} | ({"combine_kernel"} if splits != 1 else set())
    assert all(torch.equal(*(each.nan_to_num(nan=7e7) for each in p)) for p in zip((q, k, v), before, strict=True))
    check_attention(out, q, k, v, position)


@interpreted
@pytest.mark.parametrize("splits", [1, 3])
def test_an_early_start_at_a_position_outside_of_the_cache(splits, monkeypatch):
    q, (k, v) = normal(1, 2, 64), caches(1, 1, 70, 64, at(69))
    with overlapping(monkeypatch):
        behind, last, before = (
            decode.split_attention(q, k, v, at(position), splits=splits, early=True) for position in (75, 69, -1)
        )
    assert torch.equal(behind, last) and last.isfinite().all() and before.isnan().all()


# A step --------------------------------------------------------------------------------------------------------------


def test_steps_in_a_row_are_causal_attention():
    B, h, h_kv, d_h, steps = 2, 4, 2, 64, 6
    cos, sin = angles(steps, d_h)
    qkv = normal(steps, B, (h + 2 * h_kv) * d_h)
    k_cache, v_cache = poison(B, h_kv, steps, d_h), poison(B, h_kv, steps, d_h)
    position, outs = at(0), []
    for step in range(steps):
        q = decode.rope_cache(qkv[step], cos, sin, position, k_cache, v_cache, h)
        outs.append(decode.split_attention(q, k_cache, v_cache, position))
        position += 1
    heads = qkv.view(steps, B, -1, d_h).permute(1, 2, 0, 3).double()
    q, k, v = heads.split((h, h_kv, h_kv), dim=1)

    def rotated(x):
        first, second = x.chunk(2, dim=-1)
        return x * cos.double() + torch.cat((-second, first), dim=-1) * sin.double()

    expected = torch.nn.functional.scaled_dot_product_attention(
        rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
    )
    check(torch.stack(outs, dim=2), expected, dtype="fp32", length=d_h, scale=30)


TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 37}


@interpreted
@pytest.mark.parametrize("B", [1, 2])
def test_a_whole_step_overlaps(B, monkeypatch):
    for config in (gemv.ADDED, gemv.NORMED, decode.QKV):
        monkeypatch.setitem(config, "BLOCK_K", 64)  # one block of d, two of d_ff
    weights = decoder.Weights.random(load(TINY), DEVICE, torch.float32, seed=0)
    caches_ = [decoder.Cache.empty(weights, B, capacity=140) for _ in range(3)]
    for position in (0, 139):  # a block holds 128 keys
        tokens = torch.arange(B, device=DEVICE) + position % 30
        for cache in caches_:
            cache.fill(position)
            cache.seek(position)
        expected = decoder.step(weights, caches_[0], tokens, position + 1).double()
        late = decoder.step_in_triton(weights, caches_[1], tokens)
        with overlapping(monkeypatch) as overlap:
            early = decoder.step_in_triton(weights, caches_[2], tokens)
        for logits in (late, early):
            torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
        for one, two in zip(caches_[1].tensors(), caches_[2].tensors(), strict=True):
            torch.testing.assert_close(one, two)
        products = {"added_rows_kernel", "normed_rows_kernel", "qkv_cache_kernel"}
        others = {"rope_cache_kernel", "swiglu_kernel"}
        assert set(overlap.started) - {"combine_kernel"} == {"add_norm_kernel", "split_kernel"} | (
            products if B == 1 else others
        )


# Errors --------------------------------------------------------------------------------------------------------------

X = torch.ones(2, 96, device=DEVICE)
W = torch.ones(96, 96, device=DEVICE)
CACHE = torch.ones(2, 1, 4, 16, device=DEVICE)
Q = torch.ones(2, 4, 16, device=DEVICE)
TABLE = torch.ones(4, 16, device=DEVICE)
ZERO = torch.zeros(1, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decode.add_norm(X, X[:1], X[0], 1e-5), r"x has shape \(2, 96\); it needs residual's"),
        (lambda: decode.add_norm(X, X, X[0, :3], 1e-5), "weight has shape"),
        (lambda: decode.add_norm(X.half(), X, X[0], 1e-5), "convert one with"),
        (lambda: decode.add_norm(None, torch.ones(1, 20_000, device=DEVICE), X[0], 1e-5), "weight has shape"),
        (lambda: decode.add_norm(None, *[torch.ones(1, 20_000, device=DEVICE)] * 2, 1e-5), "1 dimensions"),
        (
            lambda: decode.add_norm(
                None, torch.ones(1, 20_000, device=DEVICE), torch.ones(20_000, device=DEVICE), 1e-5
            ),
            "at most 16384",
        ),
        (lambda: decode.rope_cache(X, TABLE, TABLE, ZERO, CACHE, CACHE, 3), r"with these caches give \(2, 80\)"),
        (lambda: decode.rope_cache(X, TABLE[:3], TABLE[:3], ZERO, CACHE, CACHE, 4), r"need \(4 or more, 16\)"),
        (lambda: decode.rope_cache(X.half(), TABLE, TABLE, ZERO, CACHE, CACHE, 4), "qkv is torch.float16 on .* but"),
        (lambda: decode.rope_cache(X, TABLE, TABLE, ZERO.float(), CACHE, CACHE, 4), "to one of int32, int64"),
        (
            lambda: decode.rope_cache(X, TABLE, TABLE, ZERO.repeat(3), CACHE, CACHE, 4),
            "position has 3 elements; give 1",
        ),
        (lambda: decode.rope_cache(X, TABLE, TABLE, ZERO, CACHE, CACHE, 0), "0 query heads"),
        (
            lambda: decode.qkv_cache(X, W, None, TABLE, TABLE, ZERO, CACHE[:1], CACHE[:1], 4),
            r"x has shape \(2, 96\), weight \(96, 96\) and caches of 1 sequences; give \(1, K\), \(96, K\) and 1, or",
        ),
        (lambda: decode.qkv_cache(X[:1], W, None, TABLE, TABLE, ZERO, CACHE, CACHE, 4), "and caches of 2 sequences"),
        (
            lambda: decode.qkv_cache(X[:1], W[:, :95].contiguous(), None, TABLE, TABLE, ZERO, CACHE[:1], CACHE[:1], 4),
            r"weight \(96, 95\)",
        ),
        (
            lambda: decode.qkv_cache(X[:1], W, None, TABLE, TABLE, ZERO, CACHE[:1], CACHE[:1], 3),
            r"weight \(96, 96\) .* give \(1, K\), \(80, K\) and 1",
        ),
        (
            lambda: decode.qkv_cache(X[:1], W, X[0].double(), TABLE, TABLE, ZERO, CACHE[:1], CACHE[:1], 4),
            "squares is torch.float64; convert it to one of float32",
        ),
        (
            lambda: decode.qkv_cache(X[:1], W, None, TABLE[:3], TABLE[:3], ZERO, CACHE[:1], CACHE[:1], 4),
            r"need \(4 or more, 16\)",
        ),
        (
            lambda: decode.qkv_cache(X[:1], W.half(), None, TABLE, TABLE, ZERO, CACHE[:1], CACHE[:1], 4),
            "weight is torch.float16 on .* but",
        ),
        (lambda: decode.split_attention(Q, CACHE, CACHE[:, :, :2].contiguous(), ZERO), "v_cache has shape"),
        (lambda: decode.split_attention(Q, CACHE[:, :, :2], CACHE[:, :, :2], ZERO), r"pass k_cache\.contiguous\(\)"),
        (lambda: decode.split_attention(Q, CACHE, CACHE.half(), ZERO), "v_cache is torch.float16"),
        (lambda: decode.split_attention(Q.half(), CACHE, CACHE, ZERO), "q is torch.float16"),
        (lambda: decode.split_attention(Q[:1], CACHE, CACHE, ZERO), r"q has shape \(1, 4, 16\); .* give \(2, 4, 16\)"),
        (lambda: decode.split_attention(Q, CACHE, CACHE, ZERO, splits=0), "from 1 to 256, or None"),
        (
            lambda: decode.split_attention(Q, *[torch.ones(2, 3, 4, 16, device=DEVICE)] * 2, ZERO),
            "4 query heads do not share 3 key heads evenly: give a multiple of 3",
        ),
        (
            lambda: decode.split_attention(Q, *[torch.ones(2, 1, 4, 24, device=DEVICE)] * 2, ZERO),
            "head dimension 24; choose from 16, 32",
        ),
        (lambda: decode.swiglu(X[:, :3].contiguous()), "give an even number"),
        (lambda: decode.swiglu(X, out=X), r"out is \(2, 96\) .* it needs \(2, 48\)"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(KernelError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
