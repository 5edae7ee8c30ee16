"""FA1 and FA2, forward and backward, against float64; without a GPU in Triton's interpreter."""

import pytest
import torch

from rooflab import records
from rooflab.kernels import KernelError, attention, check, flash
from rooflab.kernels._triton import INTERPRETED
from rooflab.ledger import WORKLOADS
from rooflab.roofline import ceilings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16] if INTERPRETED else [torch.bfloat16, torch.float16]
# Padding goes through the arithmetic and is then masked; NumPy, under the interpreter, warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(invalid value|overflow|divide by zero|All-NaN slice) encountered:RuntimeWarning"
)
FORWARD = [flash.fa1, flash.fa2]


def normal(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).to(DEVICE)


def operands(B, h, h_kv, L, d_h, dtype=torch.float32, scale=1.0):
    q = normal(B, h, L, d_h, dtype=dtype, scale=scale)
    return q, *(normal(B, h_kv, L, d_h, dtype=dtype, seed=seed) for seed in (1, 2))


def poison(like):
    return torch.full_like(like, float("nan"))


def logits(q, k, causal):
    """Return S in float64, -inf where it is masked."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    s = q.double() @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -float("inf")) if causal else s


def check_forward(version, q, k, v, causal, out=None):
    out = version(q, k, v, causal, poison(q) if out is None else out)
    # P is rounded to the dtype of V: L such roundings of numbers up to 1, which weigh elements of V and add up to 1.
    # fp32 P costs a rounding of S, which is larger than P.
    largest = max(logits(q, k, causal).nan_to_num(neginf=0).abs().max().item(), 1)
    scale = v.double().abs().max().item() * (largest if q.dtype == torch.float32 else 1)
    check(out, flash.reference(q, k, v, causal), dtype=q.dtype, length=2, scale=scale, accumulate=q.dtype)
    return out


def gradients(q, k, v, do, causal):
    """Return dq, dk and dv in float64, from torch's autograd."""
    leaves = [each.double().requires_grad_() for each in (q, k, v)]
    return torch.autograd.grad(flash.reference(*leaves, causal), leaves, do.double())


def check_backward(q, k, v, do, causal):
    lse = poison(q[..., 0].float().contiguous())
    o = flash.fa2(q, k, v, causal, lse=lse)
    grads = flash.fa2_backward(q, k, v, o, do, lse, causal)
    group = q.shape[1] // k.shape[1]
    for grad, expected in zip(grads, gradients(q, k, v, do, causal), strict=True):
        # P and dS are rounded to the operands' dtype; o, rounded too, is in delta. Errors of many rows add up.
        length = 4 * (q.shape[2] * group if grad.shape == k.shape else 1)
        # dP - delta cancels: wholly where a query sees one key. In fp32 that shows beside all other roundings.
        scale = 20.0 if q.dtype == torch.float32 else max(expected.abs().max().item(), 1e-3)
        check(grad, expected, dtype=q.dtype, length=length, scale=scale, accumulate=q.dtype)
    return o, lse, grads


# (B, h, h_kv, L, d_h): one position, less than a tile, ragged and whole tiles, groups of heads that share keys.
SHAPES = [(1, 2, 2, 1, 64), (2, 1, 1, 17, 64), (1, 4, 2, 128, 64), (1, 3, 1, 130, 64), (1, 1, 1, 300, 128)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape, dtype, causal):
    q, k, v = operands(*shape, dtype=dtype)
    for version in FORWARD:
        out = check_forward(version, q, k, v, causal)
        if causal:
            group = shape[1] // shape[2]
            first = v[:, :, 0].repeat_interleave(group, dim=1)
            assert torch.equal(out[:, :, 0], first), "the first position sees only itself"
    lse = poison(q[..., 0].float().contiguous())
    flash.fa2(q, k, v, causal, lse=lse)
    expected = torch.logsumexp(logits(q, k, causal), dim=-1)
    check(lse, expected, dtype="fp32", length=shape[3], scale=max(logits(q, k, causal).abs()[..., 0].max().item(), 1))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:1] + SHAPES[2:], ids=str)
def test_backward(shape, dtype, causal):
    q, k, v = operands(*shape, dtype=dtype)
    check_backward(q, k, v, normal(*q.shape, dtype=dtype, seed=3), causal)


# Every way in which blocks of queries and of keys can lie: one inside the other, equal, neither dividing L.
@pytest.mark.parametrize("blocks", [(32, 64), (64, 32), (32, 32), (128, 16)], ids=str)
def test_blocks_of_other_sizes(blocks):
    BLOCK_M, BLOCK_N = blocks
    config = dict(BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, HEADS=2, num_warps=4, num_stages=1)
    q, k, v = operands(1, 3, 1, 150, 64)
    do = normal(*q.shape, seed=3)
    for causal in (False, True):
        lse = poison(q[..., 0].contiguous())
        o = flash.fa2(q, k, v, causal, poison(q), lse, config)
        check(o, flash.reference(q, k, v, causal), dtype="fp32", length=150, scale=10)
        grads = flash.fa2_backward(q, k, v, o, do, lse, causal, (config, config))
        for grad, expected in zip(grads, gradients(q, k, v, do, causal), strict=True):
            check(grad, expected, dtype="fp32", length=150, scale=10)
    if BLOCK_N >= BLOCK_M:
        config = dict(BLOCK_M=16, BLOCK_N=BLOCK_N * 2, num_warps=4, num_stages=1)
        for causal in (False, True):
            o = flash.fa1(q, k, v, causal, poison(q), config)
            check(o, flash.reference(q, k, v, causal), dtype="fp32", length=150, scale=10)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_large_logits(causal):
    q, k, v = operands(1, 1, 1, 150, 64, scale=50)  # S far beyond the range of exp
    assert logits(q, k, False).abs().max() > 100
    for version in FORWARD:
        check_forward(version, q, k, v, causal)
    lse = poison(q[..., 0].contiguous())
    o = flash.fa2(q, k, v, causal, lse=lse)
    grads = flash.fa2_backward(q, k, v, o, normal(*q.shape, seed=3), lse, causal)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_what_lies_around_a_head_does_not_leak(causal):
    # The second of three heads; the others, which ragged tiles reach, are NaN.
    q, k, v = operands(1, 1, 1, 70, 64)
    do = normal(*q.shape, seed=3)
    wide = [torch.full((1, 3, 70, 64), float("nan"), device=DEVICE) for _ in range(4)]
    for each, x in zip(wide, (q, k, v, do), strict=True):
        each[:, 1] = x[:, 0]
    for version in FORWARD:
        assert torch.equal(version(*wide[:3], causal)[:, 1:2], version(q, k, v, causal))
    o, lse, grads = check_backward(q, k, v, do, causal)
    lse_wide = torch.full((1, 3, 70), float("nan"), device=DEVICE)
    o_wide = flash.fa2(*wide[:3], causal, lse=lse_wide)
    for got, expected in zip(flash.fa2_backward(*wide[:3], o_wide, wide[3], lse_wide, causal), grads, strict=True):
        assert torch.equal(got[:, 1:2], expected)


def test_two_runs_give_equal_bits():
    q, k, v = operands(1, 4, 2, 130, 64, dtype=torch.bfloat16)
    do, lse = normal(*q.shape, dtype=torch.bfloat16, seed=3), poison(q[..., 0].float().contiguous())
    o = flash.fa2(q, k, v, True, lse=lse)
    assert torch.equal(o, flash.fa2(q, k, v, True)) and torch.equal(flash.fa1(q, k, v, True), flash.fa1(q, k, v, True))
    first, second = (flash.fa2_backward(q, k, v, o, do, lse, True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_wrong_results_are_rejected():
    q, k, v = operands(1, 1, 1, 150, 64, dtype=torch.bfloat16)
    with pytest.raises(KernelError, match="above the tolerance"):
        check_forward(lambda q, k, v, causal, out: attention.eager(q * 1.1, k, v, causal), q, k, v, True)
    with pytest.raises(KernelError, match="above the tolerance"):
        check_forward(lambda q, k, v, causal, out: attention.eager(q, k, v, False), q, k, v, True)


X = torch.ones(1, 2, 4, 64, device=DEVICE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flash.fa2(*[torch.ones(1, 1, 4, 96, device=DEVICE)] * 3, True), "96.*64 and 128: use attention.naive"),
        (lambda: flash.fa1(X[0], X, X, True), "reshape it to 4 dimensions"),
        (lambda: flash.fa1(X, X, X.half(), True), "v is torch.float16 on .* but q is torch.float32"),
        (lambda: flash.fa2(X, X, X[:, :1].contiguous(), True), r"v has shape \(1, 1, 4, 64\); it needs k's"),
        (lambda: flash.fa2(X, *[X[:, :, :3].contiguous()] * 2, True), "q has 4 positions and k 3"),
        (lambda: flash.fa2(X, *[torch.ones(1, 3, 4, 64, device=DEVICE)] * 2, True), "a divisor of 2"),
        (lambda: flash.fa2(X, X, X, True, out=X[:, :1]), r"out is \(1, 1, 4, 64\)"),
        (lambda: flash.fa2(X, X, X, True, lse=X[..., 0].half().contiguous()), "lse is torch.float16; convert"),
        (lambda: flash.fa2(X, X, X, True, lse=X[:, :1, :, 0].contiguous()), r"lse is \(1, 1, 4\)"),
        (lambda: flash.fa2(X.transpose(1, 2), X, X, True), r"pass q\.contiguous\(\)"),
        (lambda: flash.fa2(torch.ones(513, device=DEVICE)[1:].view(X.shape), X, X, True), r"q starts 4 .*q\.clone"),
        (lambda: flash.fa2_backward(X, X, X, X[:, :1].contiguous(), X, X[..., 0].contiguous(), True), "o has shape"),
    ],
)  # fmt: skip
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(KernelError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_bytes_are_those_of_the_schedules(causal):
    B, h, L, d_h, size = 2, 3, 1000, 64, 2
    block_m, block_n = 16, 128
    asked = 0
    for start_n in range(0, L, block_n):
        asked += 2 * min(block_n, L - start_n) * d_h * size  # K and V
        for start_m in range(start_n if causal else 0, L, block_m):
            rows = min(block_m, L - start_m)
            last = start_m < start_n + block_n if causal else start_n + block_n >= L
            part = rows * (4 * d_h + 8)  # O, l and m
            asked += rows * d_h * size + (part if start_n else 0) + (rows * d_h * size if last else part)
    assert flash.fa1_bytes(B, h, L, d_h, causal, size, block_n) == B * h * asked
    asked = 0
    for start_m in range(0, L, block_n):
        rows = min(block_n, L - start_m)
        asked += rows * (2 * d_h * size + 4) + 2 * d_h * size * (start_m + rows if causal else L)
    assert flash.fa2_bytes(B, h, L, d_h, causal, size, block_n) == B * h * asked


def test_fa1_time_has_the_limits_of_its_model():
    def cycles(heads, L=256, causal=False, latency=1000, busy=0):
        return flash.fa1_seconds(1, heads, L, causal, sms=4, clock=1, latency=latency, busy=busy)

    # Two blocks of keys: 16 blocks of queries each, when causal 16 and 8; and a tile's time for each K and V.
    assert cycles(4) == (32 + 2) * 1000 and cycles(4, causal=True) == (24 + 2) * 1000
    # A pipe that takes no time is never in the way of a second program; one that takes all of it doubles the time.
    assert cycles(8) == cycles(4)
    assert cycles(8, busy=1000) == 2 * cycles(4)
    assert cycles(4) < cycles(5, busy=500) == cycles(8, busy=500) < 2 * cycles(4)
    # A third program begins when the first two are done.
    assert cycles(9, busy=500) == cycles(8, busy=500) + cycles(4)
    # Long sequences: four times for twice the length, half when causal.
    assert cycles(4, L=16384) / cycles(4, L=8192) == pytest.approx(4, rel=0.01)
    assert cycles(4, L=16384, causal=True) / cycles(4, L=16384) == pytest.approx(1 / 2, rel=0.02)


@pytest.mark.parametrize("L", [1024, 2048, 4096, 8192])
def test_naive_time_is_predicted_from_bytes_and_one_product(L):
    best = ceilings("h200-sxm")
    copy, gemm = best["copy"].rate, best["gemm bf16"].rate
    (row,) = records.load("h200-sxm", "attention").select("naive", L=L)
    shape = {name: row["case"][name] for name in ("B", "h", "L", "d_h")}
    assert flash.naive_seconds(**shape, bytes_per_s=copy, flop_per_s=gemm) == pytest.approx(row["time_s"], rel=0.15)
    demand = WORKLOADS["attention_naive"].demand(**shape, b=2)
    infinite = float("inf")
    assert flash.naive_seconds(**shape, bytes_per_s=1, flop_per_s=infinite) == demand.traffic["hbm"]
    assert flash.naive_seconds(**shape, bytes_per_s=infinite, flop_per_s=1) == demand.flop / 2
    if L == 1024:
        return  # its kernels were not counted one by one
    # Each kernel alone: the first adds its product to its bytes, the last hides it.
    heads = shape["B"] * shape["h"]
    outer, square = 2 * 2 * heads * L * shape["d_h"], 2 * heads * L**2  # bytes: two operands of (L, d_h), and S or P
    product = 2 * heads * L**2 * shape["d_h"] / gemm
    expected = ((outer + square) / copy + product, 2 * square / copy, (outer + square) / copy)
    measured = [kernel["time_s"] for kernel in row["counted"]]
    assert measured == pytest.approx(expected, rel=0.2)
    hidden = (expected[0] - product, expected[1], expected[2])
    added = (expected[0], expected[1], expected[2] + product)
    assert measured != pytest.approx(hidden, rel=0.2) and measured != pytest.approx(added, rel=0.2)
