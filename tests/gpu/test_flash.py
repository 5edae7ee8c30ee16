"""FA1 and FA2 on a real GPU at real sizes, some heads against float64: pytest -m gpu tests/gpu/test_flash.py."""

import pytest
import torch

from rooflab.kernels import check, flash

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
hopper = pytest.mark.skipif(not HOPPER, reason="needs TMA, sm_90 or later")


def normal(*shape, seed=0, dtype=torch.bfloat16, scale=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(shape, generator=generator, device="cuda") * scale).to(dtype)


def poison(like):
    return torch.full_like(like, float("nan"))


def one_head(head, group, *tensors):
    """Return head `head` of the first sequence of each tensor, with the keys that it sees."""
    return [each[:1, (index := head // group if number in (1, 2) else head) : index + 1].contiguous()
            for number, each in enumerate(tensors)]  # fmt: skip


# (B, h, h_kv, L, d_h): ragged, many waves, groups that share keys, d_h of 64, long.
SHAPES = [
    (2, 3, 3, 777, 128),
    (4, 16, 16, 2048, 128),
    (1, 16, 4, 3000, 128),
    (2, 8, 2, 2048, 64),
    (1, 2, 2, 16384, 128),
]
VERSIONS = [flash.fa1, pytest.param(flash.fa2, marks=hopper)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.__name__)
def test_forward(version, shape, dtype, causal):
    B, h, h_kv, L, d_h = shape
    q = normal(B, h, L, d_h, dtype=dtype, scale=2)
    k, v = (normal(B, h_kv, L, d_h, dtype=dtype, seed=seed) for seed in (1, 2))
    for _ in range(3):  # a missing barrier shows now and then only
        out = version(q, k, v, causal, poison(q))
        assert out.isfinite().all()
        for head in (0, h - 1):
            reference = flash.reference(*one_head(head, h // h_kv, q, k, v), causal)
            scale = v.abs().max().item()
            check(out[:1, head : head + 1], reference, dtype=dtype, length=2, scale=scale, accumulate=dtype)


@hopper
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", [*SHAPES[:4], (1, 1, 1, 8192, 128), (1, 1, 1, 1, 128)], ids=str)
def test_backward(shape, causal):
    B, h, h_kv, L, d_h = shape
    q, do = normal(B, h, L, d_h), normal(B, h, L, d_h, seed=3)
    k, v = (normal(B, h_kv, L, d_h, seed=seed) for seed in (1, 2))
    lse = poison(q[..., 0].float().contiguous())
    o = flash.fa2(q, k, v, causal, lse=lse)
    grads = flash.fa2_backward(q, k, v, o, do, lse, causal)
    again = flash.fa2_backward(q, k, v, o, do, lse, causal)
    assert all(map(torch.equal, grads, again)), "not the same bits"
    group = h // h_kv
    leaves = [each.double().requires_grad_() for each in (q[:1, :group], k[:1, :1], v[:1, :1])]
    expected = torch.autograd.grad(flash.reference(*leaves, causal), leaves, do[:1, :group].double())
    for grad, reference, heads in zip(grads, expected, (group, 1, 1), strict=True):
        assert grad.isfinite().all()
        length = 4 * (1 if heads == group > 1 else L)
        scale = max(reference.abs().max().item(), 1e-3)
        check(grad[:1, :heads], reference, dtype="bf16", length=length, scale=scale, accumulate="bf16")
        relative = (grad[:1, :heads].double() - reference).norm() / reference.norm().clamp_min(1e-3)
        assert relative < 1e-2, relative


@hopper
def test_logsumexp():
    q, k, v = (normal(1, 2, 4000, 128, seed=seed) for seed in range(3))
    for causal in (False, True):
        lse = poison(q[..., 0].float().contiguous())
        flash.fa2(q, k, v, causal, lse=lse)
        s = q.double() @ k.double().transpose(-1, -2) * 128**-0.5
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -float("inf")) if causal else s
        check(lse, torch.logsumexp(s, dim=-1), dtype="fp32", length=4000, scale=10)


@hopper
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_large_logits(causal):
    q, k, v = normal(1, 2, 1000, 128, scale=50), normal(1, 2, 1000, 128, seed=1), normal(1, 2, 1000, 128, seed=2)
    lse = poison(q[..., 0].float().contiguous())
    o = flash.fa2(q, k, v, causal, poison(q), lse)
    for out in (o, flash.fa1(q, k, v, causal, poison(q))):
        check(out, flash.reference(q, k, v, causal), dtype="bf16", length=2, scale=5, accumulate="bf16")
    assert all(each.isfinite().all() for each in flash.fa2_backward(q, k, v, o, normal(*q.shape), lse, causal))


@hopper
def test_neighbours_do_not_leak():
    wide = [normal(1, 3, 777, 128, seed=seed) for seed in range(4)]
    for each in wide:
        each[:, 0::2] = float("nan")
    q, k, v, do = (each[:, 1:2].contiguous() for each in wide)
    lse, lse_wide = poison(q[..., 0].float().contiguous()), poison(wide[0][..., 0].float().contiguous())
    o, o_wide = flash.fa2(q, k, v, True, lse=lse), flash.fa2(*wide[:3], True, lse=lse_wide)
    assert torch.equal(o, o_wide[:, 1:2]) and torch.equal(flash.fa1(q, k, v, True), flash.fa1(*wide[:3], True)[:, 1:2])
    grads = flash.fa2_backward(q, k, v, o, do, lse, True)
    for got, expected in zip(flash.fa2_backward(*wide[:3], o_wide, wide[3], lse_wide, True), grads, strict=True):
        assert torch.equal(got[:, 1:2], expected)
