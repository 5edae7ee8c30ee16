"""FlashAttention-3 on a real GPU: pytest -m gpu tests/gpu/test_flash_hopper.py."""

import math

import pytest
import torch

from rooflab import numerics
from rooflab.kernels import flash, flash_hopper

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs sm_90")]

CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
LENGTHS = (1, 64, 65, 100, 128, 129, 192, 320, 333, 512, 1000, 2048, 4224)
# Relative to the norm: P and O are rounded once each; a few roundoffs for a whole result, more for the worst row.
WHOLE = {torch.bfloat16: 3e-3, torch.float16: 5e-4}
SHARES = [0, 0.5, 1]  # of tiles of 192 rows; the others have 128


def normal(*shape, seed=0, dtype=torch.bfloat16, scale=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, device="cuda")).to(dtype)


def operands(B, h, h_kv, L, d=128, dtype=torch.bfloat16, scale=2.0):
    q = normal(B, h, L, d, dtype=dtype, scale=scale)
    k = normal(B, h_kv, L, d, seed=1, dtype=dtype, scale=scale)
    return q, k, normal(B, h_kv, L, d, seed=2, dtype=dtype)


def poison(q):
    return torch.full(q.shape, float("nan"), dtype=q.dtype, device="cuda")


def check(out, q, k, v, causal):
    exact = flash.reference(q, k, v, causal)
    error, size = (out.double() - exact), exact.norm(dim=-1)
    assert out.isfinite().all()
    assert error.norm() <= WHOLE[out.dtype] * exact.norm()
    assert (error.norm(dim=-1) <= 6 * WHOLE[out.dtype] * size).all()


def logsumexp(q, k, causal):
    s = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device="cuda").triu(1), -math.inf)
    return s.logsumexp(-1)


@CAUSAL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("L", LENGTHS)
def test_fa3(L, d, dtype, causal):
    q, k, v = operands(2, 4, 2, L, d, dtype)
    lse = torch.full(q.shape[:3], float("nan"), device="cuda")
    for _ in range(3):  # a missing barrier shows now and then only
        check(flash_hopper.fa3(q, k, v, causal, poison(q)), q, k, v, causal)
    check(flash_hopper.fa3(q, k, v, causal, poison(q), lse), q, k, v, causal)
    torch.testing.assert_close(lse.double(), logsumexp(q, k, causal), rtol=1e-5, atol=1e-3)


@CAUSAL
@pytest.mark.parametrize("share", SHARES)
def test_wide_and_narrow_tiles(share, causal):
    for B, h, h_kv, L in ((2, 4, 4, 333), (1, 6, 3, 1000), (3, 5, 5, 512), (16, 16, 16, 256), (1, 2, 2, 2048)):
        q, k, v = operands(B, h, h_kv, L)
        wide = int(share * (L // 192))
        first = flash_hopper.fa3(q, k, v, causal, poison(q), wide=wide)
        check(first, q, k, v, causal)
        for _ in range(5):
            assert torch.equal(flash_hopper.fa3(q, k, v, causal, poison(q), wide=wide), first)


@CAUSAL
@pytest.mark.parametrize("h_kv", [1, 2, 4, 8])
def test_grouped_queries(h_kv, causal):
    q, k, v = operands(2, 8, h_kv, 300)
    check(flash_hopper.fa3(q, k, v, causal), q, k, v, causal)


@CAUSAL
def test_many_tiles_on_one_program(causal):
    q, k, v = operands(8, 16, 16, 1000)  # some 6 to 8 tiles a program
    out = flash_hopper.fa3(q, k, v, causal, poison(q))
    for batch in (0, 3, 7):
        each = slice(batch, batch + 1)
        check(out[each], q[each], k[each], v[each], causal)


@CAUSAL
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("L", [1, 64, 65, 128, 129, 320])
def test_short_tiles_in_many_turns(L, d, causal):
    """Four to twelve tiles a program: letters and places of Q are used again, in most tiles a consumer has no rows."""
    q, k, v = operands(32, 16, 4, L, d)
    for wide in {0, L // 192}:
        first = flash_hopper.fa3(q, k, v, causal, poison(q), wide=wide)
        check(first, q, k, v, causal)
        for _ in range(10):
            assert torch.equal(flash_hopper.fa3(q, k, v, causal, poison(q), wide=wide), first)
        lse = torch.full(q.shape[:3], float("nan"), device="cuda")
        check(flash_hopper.fa3(q, k, v, causal, poison(q), lse, wide), q, k, v, causal)
        torch.testing.assert_close(lse.double(), logsumexp(q, k, causal), rtol=1e-5, atol=1e-3)
    assert flash_hopper.counter_of(q.device).item() == 0


@CAUSAL
@pytest.mark.parametrize("scale", [0.0, 30.0, 1000.0])
def test_large_logits(scale, causal):
    q, k, v = operands(1, 2, 2, 400, scale=scale)
    out = flash_hopper.fa3(q, k, v, causal)
    exact = flash.reference(q, k, v, causal)
    assert out.isfinite().all()
    # Scores of 10^5 are right to some 10^-2 in fp32: a close second may get another share.
    assert (out.double() - exact).norm() <= (3e-3 if scale < 1000 else 3e-2) * exact.norm()


@CAUSAL
def test_other_strides(causal):
    """(B, L, h, d) in memory, as models have it."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in operands(2, 4, 2, 333))
    assert not q.is_contiguous()
    check(flash_hopper.fa3(q, k, v, causal), q, k, v, causal)


@CAUSAL
def test_replayed_from_a_graph(causal):
    q, k, v = operands(2, 4, 4, 1000)
    out = poison(q)
    flash_hopper.fa3(q, k, v, causal, out)  # compiles, and makes the counter
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            flash_hopper.fa3(q, k, v, causal, out)
    for seed in range(3):
        q.copy_(normal(*q.shape, seed=seed))
        out.fill_(float("nan"))
        graph.replay()
        check(out, q, k, v, causal)
    assert flash_hopper.counter_of(q.device).item() == 0


def quantised(q, k, v):
    (q8, scale_q), (k8, scale_k), (v8, scale_v) = (flash_hopper.quantise_heads(x) for x in (q, k, v))
    exact = [x.double() * s.double()[:, :, None, None] for x, s in ((q8, scale_q), (k8, scale_k), (v8, scale_v))]
    return (q8, k8, flash_hopper.fp8_layout_of_v(v8), scale_q, scale_k, scale_v), exact


@CAUSAL
@pytest.mark.parametrize("L", LENGTHS)
def test_fa3_fp8(L, causal):
    q, k, v = operands(2, 4, 2, L)
    v *= torch.tensor([0.1, 10.0], device="cuda")[None, :, None, None]  # a scale from the wrong head shows
    arguments, exact = quantised(q, k, v)
    reference = flash.reference(*exact, causal)
    lse = torch.full(q.shape[:3], float("nan"), device="cuda")
    first = flash_hopper.fa3_fp8(*arguments, causal, poison(q), lse)
    for head in range(4):
        error = (first[:, head].double() - reference[:, head]).norm() / reference[:, head].norm()
        assert error < 4e-2, error  # P has 4 significant bits; 2.6e-2 is usual
    # The Tensor Cores keep some 13 bits behind the point of FP8 products.
    torch.testing.assert_close(lse.double(), logsumexp(exact[0], exact[1], causal), rtol=2e-3, atol=2e-2)
    for _ in range(3):
        assert torch.equal(flash_hopper.fa3_fp8(*arguments, causal, poison(q)), first)


@CAUSAL
@pytest.mark.parametrize("L", [1, 64, 65, 128, 129, 320])
def test_short_tiles_in_many_turns_fp8(L, causal):
    q, k, v = operands(32, 16, 4, L)
    v *= (10.0 ** (torch.arange(128, device="cuda") % 3)).view(32, 4, 1, 1)  # a scale from the wrong head shows
    arguments, exact = quantised(q, k, v)
    reference = flash.reference(*exact, causal)
    for wide in {0, L // 192}:
        first = flash_hopper.fa3_fp8(*arguments, causal, poison(q), wide=wide)
        error = (first.double() - reference).norm(dim=(2, 3)) / reference.norm(dim=(2, 3))
        assert (error < 4e-2).all(), error.max()
        for _ in range(10):
            assert torch.equal(flash_hopper.fa3_fp8(*arguments, causal, poison(q), wide=wide), first)


def test_fp8_error_is_that_of_the_recipe():
    """Outliers as in the paper, Q and K rotated: within 1.2 times the error of numerics' emulation."""
    generator = torch.Generator().manual_seed(0)
    heads = [
        [numerics.with_outliers(4096, 128, outlier_rate=1e-3, generator=generator) for _ in range(3)] for _ in range(2)
    ]
    q, k, v = (torch.stack([head[i] for head in heads])[None].cuda() for i in range(3))
    exact = flash.reference(q, k, v, False)
    paper = torch.stack([numerics.flash_fp8(*head) for head in heads])[None].cuda()
    arguments, _ = quantised(numerics.rotate(q.cpu()).cuda(), numerics.rotate(k.cpu()).cuda(), v)
    ours = flash_hopper.fa3_fp8(*arguments, False)
    rmse = [(each.double() - exact).square().mean().sqrt().item() for each in (ours, paper)]
    assert rmse[0] < 1.2 * rmse[1], rmse
