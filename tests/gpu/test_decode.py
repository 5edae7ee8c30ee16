"""The kernels of a decode step on a real GPU, at real sizes and in CUDA graphs: pytest -m gpu tests/gpu."""

import pytest
import torch

from rooflab import decoder, timing
from rooflab.kernels import check, decode, gemv
from rooflab.kernels._triton import triton
from rooflab.models import load

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
hopper = pytest.mark.skipif(not HOPPER, reason="needs sm_90")
EARLY = [False, pytest.param(True, marks=hopper)]
# Compilation takes most of the time. What fp16 shares with bf16 runs one way only.
VARIANTS = [
    *((dtype, early) for dtype in (torch.bfloat16, torch.float32) for early in ((False, True) if HOPPER else (False,))),
    (torch.float16, HOPPER),
]
variants = pytest.mark.parametrize(("dtype", "early"), VARIANTS, ids=str)


def normal(*shape, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def poison(*shape, dtype=torch.bfloat16):
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def at(*positions):
    return torch.tensor(positions, device="cuda")


def angles(capacity, d_h):
    rate = 5e5 ** (-torch.arange(0, d_h, 2, dtype=torch.float64, device="cuda") / d_h)
    angle = torch.arange(capacity, dtype=torch.float64, device="cuda")[:, None] * torch.cat((rate, rate))
    return angle.cos().float(), angle.sin().float()


@variants
@pytest.mark.parametrize("shape", [(64, 4096), (3, 5000), (2, 16384)], ids=str)
def test_add_norm(shape, dtype, early):
    x, residual, weight = (
        normal(*shape, dtype=dtype),
        normal(*shape, seed=1, dtype=dtype),
        normal(shape[1], dtype=dtype),
    )
    total, _ = decode.add_norm_reference(x, residual, weight, 1e-5)
    y = decode.add_norm(x, residual, weight, 1e-5, out=poison(*shape, dtype=dtype), early=early)
    check(residual, total, dtype=dtype, length=1)
    _, reference = decode.add_norm_reference(None, residual, weight, 1e-5)
    length = shape[1] if dtype == torch.float32 else 1
    check(y, reference, dtype=dtype, length=length, accumulate=dtype)


@variants
@pytest.mark.parametrize(("B", "h", "h_kv", "d_h"), [(1, 32, 8, 128), (64, 32, 8, 128), (3, 8, 8, 64)])
def test_rope_cache(B, h, h_kv, d_h, dtype, early):
    capacity = 1000
    qkv, (cos, sin) = normal(B, (h + 2 * h_kv) * d_h, dtype=dtype), angles(capacity, d_h)
    q, k, v = qkv.view(B, -1, d_h).split((h, h_kv, h_kv), dim=1)
    for position in (at(999), torch.arange(B, device="cuda") * 7, at(1000)):
        k_cache, v_cache = (poison(B, h_kv, capacity, d_h, dtype=dtype) for _ in range(2))
        out = decode.rope_cache(
            qkv, cos, sin, position, k_cache, v_cache, h, out=poison(B, h, d_h, dtype=dtype), early=early
        )
        where, rows = position.expand(B), torch.arange(B, device="cuda")
        if where[0] >= capacity:
            assert k_cache.isnan().all() and v_cache.isnan().all() and out.isnan().all()
            continue
        check(out, decode.rotate_reference(q, cos[where], sin[where]), dtype=dtype, length=2)
        check(k_cache[rows, :, where], decode.rotate_reference(k, cos[where], sin[where]), dtype=dtype, length=2)
        assert torch.equal(v_cache[rows, :, where], v)
        assert k_cache.isfinite().sum() == v_cache.isfinite().sum() == B * h_kv * d_h


@variants
@pytest.mark.parametrize(("h", "h_kv", "d_h", "K"), [(32, 8, 128, 4096), (8, 8, 64, 1100)])
def test_qkv_cache(h, h_kv, d_h, K, dtype, early):
    capacity, rows, (cos, sin) = 1000, (h + 2 * h_kv) * d_h, angles(1000, d_h)
    x, weight = normal(1, K, dtype=dtype), normal(rows, K, seed=1, dtype=dtype) / K**0.5
    squares = normal(K // 4, seed=2, dtype=torch.float32).square()  # any, as long as they are the sums of K squares
    product = gemv.reference(x, weight) * torch.rsqrt(squares.double().sum() / K + 1e-5)
    q, k, v = product.view(1, -1, d_h).split((h, h_kv, h_kv), dim=1)
    # The product is rounded, and the rotation then adds two of them.
    size = {"dtype": dtype, "length": K + 2, "scale": product.abs().max().item() * 2**0.5, "accumulate": dtype}
    for position in (at(999), at(0), at(1000)):
        k_cache, v_cache = (poison(1, h_kv, capacity, d_h, dtype=dtype) for _ in range(2))
        out = poison(1, h, d_h, dtype=dtype)
        decode.qkv_cache(x, weight, squares, cos, sin, position, k_cache, v_cache, h, out=out, early=early)
        if position >= capacity:
            assert k_cache.isnan().all() and v_cache.isnan().all() and out.isnan().all()
            continue
        check(out, decode.rotate_reference(q, cos[position], sin[position]), **size)
        check(k_cache[:, :, position[0]], decode.rotate_reference(k, cos[position], sin[position]), **size)
        check(v_cache[:, :, position[0]], v, **size)
        assert k_cache.isfinite().sum() == v_cache.isfinite().sum() == h_kv * d_h


# A block holds 32 keys of 128 numbers, or 64 of 64; twice as many at 256 key heads or early at a long context, four
# times at 2048 key heads, half as many in fp32. The newest is alone, full, ragged, or has one key, at one position for
# all sequences or at one for each.
@variants
@pytest.mark.parametrize(("B", "h", "h_kv", "d_h", "capacity", "lengths"), [
    (1, 32, 8, 128, 32768, [[1], [32], [33], [4095], [32768]]), (32, 32, 8, 128, 608, [[513], [64]]),
    (64, 32, 32, 128, 300, [[300], [129]]), (1, 32, 32, 128, 5000, [[4500]]),
    (3, 32, 4, 64, 3000, [[2222, 64, 1], [2240, 3000, 65]]),
], ids=str)  # fmt: skip
def test_attention(B, h, h_kv, d_h, capacity, lengths, dtype, early):
    q, keys, values = (
        normal(B, h, d_h, dtype=dtype),
        *(normal(B, h_kv, capacity, d_h, dtype=dtype, seed=s) for s in (1, 2)),
    )
    for each in lengths:
        position, k, v = at(*each) - 1, keys.clone(), values.clone()
        for b, length in enumerate((position + 1).expand(B).tolist()):
            k[b, :, length:], v[b, :, length:] = float("nan"), float("nan")
        reference, largest = decode.attention_reference(q, k, v, position), v.nan_to_num(0).abs().max().item()
        for splits in (None, 1, 7):
            out = poison(B, h, d_h, dtype=dtype)
            decode.split_attention(q, k, v, position, out=out, splits=splits, early=early)
            if dtype == torch.float32:
                check(out, reference, dtype=dtype, length=capacity, scale=largest)
            else:
                check(out, reference, dtype=dtype, length=1, scale=largest / 4, accumulate=dtype)
            again = decode.split_attention(q, k, v, position, splits=splits, early=early)
            assert torch.equal(again, out), "the parts are added in one order"


@variants
@pytest.mark.parametrize("shape", [(64, 28672), (3, 22022)], ids=str)
def test_swiglu(shape, dtype, early):
    gate_up = normal(*shape, dtype=dtype)
    out = decode.swiglu(gate_up, out=poison(shape[0], shape[1] // 2, dtype=dtype), early=early)
    check(out, decode.swiglu_reference(gate_up), dtype=dtype, length=4, scale=2 * gate_up.abs().max().item())


# Early starts --------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """Return what calls a function with each kernel at its end before the next is launched: the same code, no overlap.

    Attention's parts differ where it starts early, so other code would give other bits.
    """
    owner = triton.runtime.jit.JITFunction
    run = owner.run

    def run_alone(self, *args, **options):
        done = run(self, *args, **options)
        torch.cuda.synchronize()
        return done

    def call(function):
        with monkeypatch.context() as patch:
            patch.setattr(owner, "run", run_alone)
            return function()

    return call


class Steps:
    """Four layers without their GEMVs: every kernel reads what the one before it wrote."""

    def __init__(self, B, h=32, h_kv=8, d_h=128, capacity=4208, layers=4):
        self.h, self.start = h, 4090
        width = (h + 2 * h_kv) * d_h
        self.first, self.residual, self.weight = normal(B, width), normal(B, width, seed=1), normal(width, seed=2)
        self.caches = [normal(2, B, h_kv, capacity, d_h, seed=3 + layer) for layer in range(layers)]
        self.cos, self.sin = angles(capacity, d_h)
        self.position, self.out = at(self.start), []
        self.before = [each.clone() for each in (self.residual, *self.caches)]

    def reset(self):
        for now, before in zip((self.residual, *self.caches), self.before, strict=True):
            now.copy_(before)
        self.position.fill_(self.start)

    def __call__(self):
        x, self.out = self.first, []
        for k, v in self.caches:
            x = decode.add_norm(x, self.residual, self.weight, 1e-5, early=True)
            q = decode.rope_cache(x, self.cos, self.sin, self.position, k, v, self.h, early=True)
            o = decode.split_attention(q, k, v, self.position, early=True)
            self.out += [o, decode.swiglu(o.view(o.shape[0], -1), early=True)]
        self.position += 1


@hopper
@pytest.mark.parametrize("B", [1, 5, 80])
def test_an_early_start_changes_no_bit(B, alone):
    late, early = Steps(B), Steps(B)
    replay = timing.graphed(early)
    early.reset()
    seen = []
    for _ in range(20):
        alone(late)
        replay()
        both = ([each.residual, each.position, *each.caches, *each.out] for each in (late, early))
        assert all(torch.equal(*pair) for pair in zip(*both, strict=True))
        assert late.residual.isfinite().all()
        seen.append(late.out[0].clone())
    assert early.position.item() == early.start + 20
    assert not any(torch.equal(*pair) for pair in zip(seen, seen[1:], strict=False))


MODEL = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 32}
MODEL |= {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 4096}


@hopper
@pytest.mark.parametrize("B", [1, 5])
def test_an_early_start_in_a_whole_step_changes_no_bit(B, alone):
    """From the first tokens, whose block is the only one, and over the edge of a block."""
    weights = decoder.Weights.random(load(MODEL), "cuda", torch.bfloat16, seed=0)
    late, early = (decoder.Cache.empty(weights, B, capacity=4208) for _ in range(2))
    tokens, found, seen = torch.zeros(B, dtype=torch.int64, device="cuda"), {}, []

    def step(cache):
        found[cache] = decoder.step_in_triton(weights, cache, tokens)

    replay = timing.graphed(lambda: step(early))
    for start in (0, 4080):
        for cache in (late, early):
            cache.fill(start)
        for position in range(start, start + 40):
            tokens.copy_((torch.arange(B) + 1) * 37 * position % 4096)
            for cache in (late, early):
                cache.seek(position)
            alone(lambda: step(late))
            replay()
            both = ([found[cache], *cache.tensors()] for cache in (late, early))
            assert all(torch.equal(*pair) for pair in zip(*both, strict=True)), position
            seen.append(found[late].clone())
    assert all(logits.isfinite().all() for logits in seen)
    assert not any(torch.equal(*pair) for pair in zip(seen, seen[1:], strict=False))


@variants
@pytest.mark.parametrize("shape", [(4096, 14336), (301, 777)], ids=str)
def test_products_share_a_norm(shape, dtype, early):
    """From d_ff numbers to the residual stream of d, and through its norm to d_ff gated ones."""
    d, d_ff = shape
    x, residual, norm = normal(1, d_ff, dtype=dtype), normal(1, d, seed=1, dtype=dtype), normal(d, seed=2, dtype=dtype)
    down, gate_up = (normal(*rows, seed=3, dtype=dtype) / d_ff**0.5 for rows in ((d, d_ff), (2 * d_ff, d)))
    expected = gemv.reference(x, down) + residual.double()
    y, scaled, squares = gemv.added(x, down, residual, norm, out=residual, early=early)
    check(y, expected, dtype=dtype, length=d_ff)
    check(scaled, y.double() * norm.double(), dtype=dtype, length=1)
    out = gemv.normed(scaled, gate_up, squares, gated=True, out=poison(1, d_ff, dtype=dtype), early=early)
    normed = torch.nn.functional.rms_norm(y.double(), (d,), norm.double(), eps=1e-5)
    gate, up = gemv.reference(normed, gate_up).chunk(2, dim=1)
    size = {"length": d, "accumulate": dtype, "scale": float(gate.abs().max() * up.abs().max())}
    check(out, torch.nn.functional.silu(gate) * up, dtype=dtype, **size)


@hopper
def test_an_early_start_of_products_changes_no_bit():
    """Eight layers of products alone, each of which reads what the one before it wrote; late ones are other code."""
    d, d_ff = 4096, 14336
    shapes = (d, d), (d, d), (2 * d_ff, d), (d, d_ff)
    layers = [[normal(*shape, seed=4 * layer + i) / 50 for i, shape in enumerate(shapes)] for layer in range(8)]
    x, norm, found = normal(1, d), normal(d, seed=1), {}

    def stack(early):
        def run():
            stream, normed, squares = x.clone(), x, None
            for v, o, gate_up, down in layers:
                heads = gemv.normed(normed, v, squares, early=early)
                _, normed, squares = gemv.added(heads, o, stream, norm, out=stream, early=early)
                gated = gemv.normed(normed, gate_up, squares, gated=True, early=early)
                _, normed, squares = gemv.added(gated, down, stream, norm, out=stream, early=early)
            found[early] = stream, normed, squares

        return timing.graphed(run)

    replays = [stack(early) for early in (False, True)]
    for turn in range(20):
        x.copy_(normal(1, d, seed=turn))
        for replay in replays:
            replay()
        assert all(torch.equal(*pair) for pair in zip(found[False], found[True], strict=True))
        assert found[True][0].isfinite().all()


@pytest.mark.parametrize("early", EARLY)
def test_a_graph_follows_the_position(early):
    B, h, h_kv, d_h, capacity = 2, 32, 8, 128, 304
    (cos, sin), position = angles(capacity, d_h), at(0)
    k, v = poison(B, h_kv, capacity, d_h), poison(B, h_kv, capacity, d_h)
    qkv, found = normal(B, (h + 2 * h_kv) * d_h), {}

    def step():
        q = decode.rope_cache(qkv, cos, sin, position, k, v, h, early=early)
        found["o"] = decode.split_attention(q, k, v, position, early=early)

    replay = timing.graphed(step)
    for at_ in range(150):
        position.fill_(at_)
        qkv.copy_(normal(B, qkv.shape[1], seed=at_))
        replay()
        q = decode.rope_cache(qkv, cos, sin, position, k.clone(), v.clone(), h)
        check(found["o"], decode.attention_reference(q, k, v, position), dtype="bf16", length=1, accumulate="bf16")
    assert k.isfinite().sum() == B * h_kv * 150 * d_h
