"""The kernels of a decode step against float64 references, alone and in a row; without a GPU, in the interpreter."""

import pytest
import torch

from rooflab.kernels import KernelError, check, decode

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


def test_split_count():
    assert decode.split_count(8, 32768, 32, 132) == 49 == 3 * 132 // 8
    assert decode.split_count(8, 100, 32, 132) == 4, "not more than blocks"
    assert decode.split_count(4096, 1024, 32, 132) == 1
    assert decode.split_count(1, 1 << 20, 32, 132) == decode.MAX_SPLITS


# SwiGLU --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (3, 254), (1, 2048), (3, 4098)], ids=str)
def test_swiglu(shape, dtype):
    gate_up = normal(*shape, dtype=dtype, scale=3)
    gate_up[0, 0] = -200  # its exponential overflows
    out = decode.swiglu(gate_up, out=poison(shape[0], shape[1] // 2, dtype=dtype))
    check(out, decode.swiglu_reference(gate_up), dtype=dtype, length=4)


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


# Errors --------------------------------------------------------------------------------------------------------------

X = torch.ones(2, 96, device=DEVICE)
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
