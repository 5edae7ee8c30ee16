"""Every kernel against a float64 reference, what its checks reject, its launches, and its machine code for Hopper.

Without a GPU the kernels run in Triton's interpreter; run as a script, this file compiles them for sm_90.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rooflab import kernels, ledger
from rooflab.experiments import sass
from rooflab.kernels import (
    KernelError,
    _triton,
    attention,
    check,
    decode,
    elementwise,
    fingerprint,
    flash,
    flash_hopper,
    gemm,
    gemm_fp8,
    gemv,
    layernorm,
    softmax,
    streams,
)
from rooflab.kernels._triton import INTERPRETED, triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Padding goes through the arithmetic and is then masked; NumPy, under the interpreter, warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")


def normal(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).to(DEVICE)


def poison(like):
    return torch.full_like(like, float("nan"))


@contextlib.contextmanager
def counted_launches(monkeypatch):
    """Count kernel launches in the list that this yields."""
    owner = triton.runtime.interpreter.InterpretedFunction if INTERPRETED else triton.runtime.jit.JITFunction
    run, names = owner.run, []

    def counting(self, *args, **options):
        names.append(self.fn.__name__)
        return run(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, "run", counting)
        yield names


# Results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 3, 127, 1000, 2048, 4099])
def test_elementwise(n, dtype):
    x = normal(n, dtype=dtype)
    for k in (1, 2, 5, 8):
        reference = elementwise.reference(x, k)
        check(elementwise.fused(x, k, out=poison(x)), reference, dtype=dtype, length=k)
        for version in (elementwise.unfused(x, k, out=poison(x)), elementwise.eager(x, k)):
            check(version, reference, dtype=dtype, length=k, accumulate=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 127), (5, 1000), (9, 256), (1, 3000)], ids=str)
def test_layernorm(shape, dtype):
    x, residual = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    weight, bias = normal(shape[1], dtype=dtype, seed=2), normal(shape[1], dtype=dtype, seed=3)
    operands = x, residual, weight, bias
    reference = layernorm.reference(*operands)
    # x - mean cancels: an error of x grows by 1 / std, most where few columns make std small.
    std = x.double().var(dim=-1, correction=0).add(1e-5).sqrt()
    scale = (1 + x.double().abs().amax(dim=-1) / std).max().item() * (1 + weight.double().abs().max().item())
    check(layernorm.eager(*operands), reference, dtype=dtype, length=3, scale=scale, accumulate=dtype)
    for version in (layernorm.fused_row, layernorm.fused_persistent):
        check(version(*operands, out=poison(x)), reference, dtype=dtype, length=shape[1], scale=scale)


def test_layernorm_with_a_large_mean():
    x = normal(3, 700) + 300
    zeros, ones = torch.zeros_like(x), torch.ones(700, device=DEVICE)
    reference = layernorm.reference(x, zeros, ones, zeros[0])
    for version in (layernorm.fused_row, layernorm.fused_persistent):
        check(version(x, zeros, ones, zeros[0]), reference, dtype="fp32", length=700, scale=300)


SOFTMAX = [softmax.three_pass, softmax.online, softmax.on_chip]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (37, 127), (4, 1000), (2, 4099), (3, 16384), (4097, 2)], ids=str)
def test_softmax(shape, dtype):
    rows = min(shape[0], 200) if INTERPRETED else shape[0]
    x = normal(rows, shape[1], dtype=dtype)
    for version in SOFTMAX:
        check(version(x, out=poison(x)), softmax.reference(x), dtype=dtype, length=shape[1])


@pytest.mark.parametrize("version", SOFTMAX, ids=lambda version: version.__name__)
def test_softmax_of_awkward_rows(version, monkeypatch):
    monkeypatch.setattr(softmax, "BLOCK", 64)
    inf = float("inf")
    x = normal(9, 200, scale=3e4)  # logits far beyond the range of exp
    x[0] = -inf  # no probability at all
    x[1, :150] = -inf  # blocks without any finite element before the first finite one
    x[2, 60:] = -inf
    x[3, 7] = inf
    x[4, 9] = float("nan")
    x[5] = 1e38
    x[6] = -1e38
    reference = softmax.reference(x)
    assert reference.isnan().all(dim=1).tolist() == [True, False, False, True, True, False, False, False, False]
    check(version(x, out=torch.zeros_like(x)), reference, dtype="fp32", length=200)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "causal"), [
    ((1, 1, 1, 16), True), ((1, 2, 3, 16), False), ((2, 1, 127, 40), True), ((1, 2, 130, 64), False),
    ((1, 1, 200, 128), True),
], ids=str)  # fmt: skip
def test_attention(shape, causal, dtype):
    q, k, v = (normal(*shape, dtype=dtype, seed=seed) for seed in range(3))
    d_h = shape[-1]
    s_reference = (q.double() @ k.double().transpose(-1, -2)) * d_h**-0.5
    if causal:
        s_reference.masked_fill_(torch.ones_like(s_reference, dtype=torch.bool).triu(1), -float("inf"))
    s_size = (q.double().norm(dim=-1).max() * k.double().norm(dim=-1).max() * d_h**-0.5).item()
    s = attention.scores(q, k, causal, out=poison(s_reference.to(dtype)))
    check(s, s_reference, dtype=dtype, length=d_h, scale=s_size)
    p = attention.probabilities(s, out=poison(s))
    check(p, torch.softmax(s.double(), dim=-1), dtype=dtype, length=shape[2])
    o = attention.weighted_values(p, v, out=poison(v))
    check(o, p.double() @ v.double(), dtype=dtype, length=shape[2], scale=v.abs().max().item())
    # S rounded to 16 bits is off by u |S|, and P by that share of itself; P is then rounded once more.
    scale = (1 + s_reference.masked_fill(s_reference.isinf(), 0).abs().max().item()) * v.abs().max().item()
    reference = attention.reference(q, k, v, causal)
    for version in (attention.naive(q, k, v, causal, out=poison(v)), attention.eager(q, k, v, causal)):
        check(version, reference, dtype=dtype, length=2, scale=scale, accumulate=dtype)
    if causal:
        assert torch.equal(o[..., 0, :], v[..., 0, :]), "the first position sees only itself"


def test_attention_of_long_rows_walks_along_them(monkeypatch):
    q, k, v = (normal(1, 1, 70, 16, seed=seed) for seed in range(3))
    monkeypatch.setattr(softmax, "MAX_COLS", 64)
    with counted_launches(monkeypatch) as names:
        o = attention.naive(q, k, v, False)
    assert names == ["scores_kernel", "online_kernel", "weighted_values_kernel"]
    check(o, attention.reference(q, k, v, False), dtype="fp32", length=70, scale=10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (127, 300), (9, 4096), (6, 5000)], ids=str)
def test_gemv(shape, dtype):
    N, K = shape
    x, weight = normal(1, K, dtype=dtype), normal(N, K, dtype=dtype)
    out = poison(torch.empty(1, N, dtype=dtype, device=x.device))
    reference = gemv.reference(x, weight)
    check(gemv.rows(x, weight, out=out), reference, dtype=dtype, length=K)
    check(gemv.chained(x, weight, out=poison(out)), reference, dtype=dtype, length=K)
    check(gemv.eager(x, weight), reference, dtype=dtype, length=K)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (9, 4096), (6, 5000)], ids=str)
def test_gemv_with_its_neighbours_inside(shape, dtype):
    N, K = shape
    x, residual = normal(1, K, dtype=dtype), normal(1, N, dtype=dtype, seed=2)
    weight = normal(2 * N, K, dtype=dtype, seed=3)
    gate, up = gemv.reference(x, weight).split(N, dim=1)
    # The largest intermediate is the product with the gate, or what the residual is added to.
    gated = torch.nn.functional.silu(gate) * up
    size = {"length": K, "dtype": dtype, "scale": float(gate.abs().max() * up.abs().max())}
    check(gemv.normed(x, weight, gated=True, out=poison(residual.clone())), gated, **size)
    expected = gate + residual.double()
    y, *_ = gemv.added(x, weight[:N], residual, residual[0], out=residual)
    assert y is residual
    check(y, expected, dtype=dtype, length=K)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (301, 40), (9, 4096)], ids=str)
def test_two_gemvs_share_a_norm(shape, dtype):
    """The first has N results, and their norm stands between them and 5 results, gated or not, of the second."""
    N, K = shape
    x, norm, residual = normal(1, K, dtype=dtype), normal(N, dtype=dtype, seed=1), normal(1, N, dtype=dtype, seed=2)
    y, scaled, squares = gemv.added(x, normal(N, K, dtype=dtype, seed=3), residual, norm)
    check(y, gemv.reference(x, normal(N, K, dtype=dtype, seed=3)) + residual.double(), dtype=dtype, length=K)
    check(scaled, y.double() * norm.double(), dtype=dtype, length=1)
    check(squares.sum(), y.double().square().sum(), dtype="fp32", length=N, scale=float(y.double().square().sum()))
    weight = normal(10, N, dtype=dtype, seed=4)
    normed = torch.nn.functional.rms_norm(y.double(), (N,), norm.double(), eps=0.5)
    gate, up = gemv.reference(normed, weight).split(5, dim=1)
    # `scaled` was rounded once: its error counts like that of one more factor in each product.
    size = {"dtype": dtype, "length": N, "accumulate": dtype}
    check(gemv.normed(scaled, weight, squares, eps=0.5), torch.cat((gate, up), dim=1), **size)
    size["scale"] = float(gate.abs().max() * up.abs().max())
    expected = torch.nn.functional.silu(gate) * up
    check(gemv.normed(scaled, weight, squares, eps=0.5, gated=True), expected, **size)


def test_gemv_says_what_does_not_fit():
    x, weight = normal(1, 8, dtype=torch.float32), normal(3, 8, dtype=torch.float32)
    with pytest.raises(KernelError, match="weight has 3 rows; gated, it must have the gate's and as many of up"):
        gemv.normed(x, weight, gated=True)
    with pytest.raises(KernelError, match=r"norm has shape \(8,\); it must be \(3,\)"):
        gemv.added(x, weight, x[:, :3].contiguous(), x[0])
    with pytest.raises(KernelError, match="squares is torch.float64; convert it to one of float32"):
        gemv.normed(x, weight, x[0].double())
    with pytest.raises(KernelError, match=r"residual has shape \(1, 8\); it must be \(1, 3\)"):
        gemv.added(x, weight, x, x[0, :3])
    with pytest.raises(KernelError, match=r"x has shape \(1, 3\); with weight of \(3, 8\) it must be \(1, 8\)"):
        gemv.normed(x[:, :3].contiguous(), weight)
    with pytest.raises(KernelError, match="residual is torch.float16 on .* but x is torch.float32"):
        gemv.added(x, weight, x[:, :3].half(), x[0, :3])
    with pytest.raises(KernelError, match=r"squares has shape \(1, 8\); reshape it to 1 dimensions"):
        gemv.normed(x, weight, x)


def test_gemv_takes_one_vector():
    x, weight = normal(2, 8, dtype=torch.float32), normal(3, 8, dtype=torch.float32)
    with pytest.raises(KernelError, match=r"x has shape \(2, 8\); with weight of \(3, 8\) it must be \(1, 8\)"):
        gemv.rows(x, weight)


@pytest.mark.parametrize("n", [1, 3, 127, 1000, 40_961])
def test_streams(n, monkeypatch):
    monkeypatch.setattr(streams, "READ_PROGRAMS_PER_SM", 1)  # so that each takes several blocks
    for dtype in DTYPES:
        x = normal(n, dtype=dtype)
        assert torch.equal(streams.copy(x, out=poison(x)), x)
        assert torch.equal(streams.write(poison(x), 0.1), torch.full_like(x, 0.1))
        partial = streams.read(x)
        assert partial.shape[0] <= max(n // streams.READ_BLOCK + 1, 1)
        check(partial.sum(), x.double().sum(), dtype="fp32", length=n, scale=4.0)
    x = normal(n)
    check(streams.add_one(x.clone()), x.double() + 1, dtype="fp32", length=1)
    for repeats in (1, 33):
        y = streams.exponentials(x, repeats, out=poison(x))
        # Four times the rounding of an exponential; later steps shrink it.
        check(y, streams.exponentials_reference(x, repeats), dtype="fp32", length=4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_chase_visits_every_stop_once(dtype):
    indices = streams.random_cycle(13, stride=4, dtype=dtype, device=DEVICE)
    stops = [streams.chase(indices, steps).item() for steps in range(1, 14)]
    assert sorted(stops) == [4 * stop for stop in range(13)] and stops[-1] == 0


# Checks --------------------------------------------------------------------------------------------------------------


def low_precision_softmax(x):
    e = torch.exp(x - x.amax(dim=-1, keepdim=True))  # rounded to x's dtype
    return e / e.cumsum(dim=-1)[:, -1:]


def low_precision_layernorm(x, residual, weight, bias):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return residual + torch.relu(centred * torch.rsqrt(variance + 1e-5) * weight + bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_throughout_is_rejected(dtype):
    x = normal(8, 1000, dtype=dtype)
    operands = x, normal(8, 1000, dtype=dtype, seed=1), *normal(2, 1000, dtype=dtype, seed=2)
    with pytest.raises(KernelError, match="above the tolerance"):
        check(low_precision_softmax(x), softmax.reference(x), dtype=dtype, length=1000)
    with pytest.raises(KernelError, match="above the tolerance"):
        check(low_precision_layernorm(*operands), layernorm.reference(*operands), dtype=dtype, length=1000)
    for k in range(2, 9):
        with pytest.raises(KernelError, match="above the tolerance"):
            check(elementwise.eager(x, k), elementwise.reference(x, k), dtype=dtype, length=k)


def test_half_precision_behind_fp32_is_rejected():
    x = normal(8, 1000)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(KernelError, match="above the tolerance"):
            check(softmax.on_chip(x.to(dtype)).float(), softmax.reference(x), dtype="fp32", length=1000)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: torch.softmax(x, dim=0),
        lambda x: torch.exp(x - x.amax(dim=-1, keepdim=True)),  # not normalised
        lambda x: torch.softmax(x, dim=-1) * 1.02,
        lambda x: torch.nn.functional.pad(torch.softmax(x[:, :-1], dim=-1), (0, 1)),
        lambda x: torch.softmax(x.roll(1, dims=-1), dim=-1),
    ],
    ids=["axis", "sum", "two_percent", "last_column", "shifted"],
)
def test_wrong_results_are_rejected(wrong):
    for dtype in DTYPES:
        x = normal(40, 50, dtype=dtype)
        with pytest.raises(KernelError, match=r"wrong result at \[\d+, \d+\]"):
            check(wrong(x.float()).to(dtype), softmax.reference(x), dtype=dtype, length=50)


def test_check_names_the_worst_element():
    reference = torch.zeros(3, 5, 7, dtype=torch.float64)
    actual = reference.float()
    actual[1, 2, 3], actual[2, 4, 6] = 0.5, 0.25
    with pytest.raises(KernelError, match=r"\[1, 2, 3\]: 0\.5, expected 0:.*2 of 105 elements"):
        check(actual, reference, dtype="fp32", length=1)


@pytest.mark.parametrize(
    ("got", "expected"),
    [("nan", "1"), ("inf", "1"), ("1", "nan"), ("inf", "-inf"), ("nan", "inf"), ("3e38", "inf"), ("1", "1e39")],
)
def test_check_of_non_finite_values(got, expected):
    reference = torch.tensor([1.0, float(expected), -2.0], dtype=torch.float64)
    with pytest.raises(KernelError, match=r"at \[1\].*not finite"):
        check(torch.tensor([1.0, float(got), -2.0]), reference, dtype="fp32", length=1)
    result = check(reference.float(), reference, dtype="fp32", length=1)
    assert result.max_error <= result.tolerance
    assert check(torch.tensor(float("nan")), torch.tensor(float("nan")).double(), dtype="fp32", length=1).max_error == 0


def test_check_refuses_what_it_cannot_compare():
    x = torch.ones(3)
    for arguments, message in [
        ((x, x), "compute it in float64"),
        ((x, x[:2].double()), "shape"),
        ((x.bfloat16(), x.double()), "not float32"),
        ((x.int(), x.double()), "no tolerance for dtype int32"),
    ]:
        with pytest.raises(KernelError, match=message):
            check(*arguments, dtype="fp32", length=1)


X = torch.ones(4, 6, device=DEVICE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: elementwise.fused(X, 0), "whole number from 1 to 8"),
        (lambda: elementwise.unfused(X, 9), "whole number from 1 to 8"),
        (lambda: elementwise.fused(X.double(), 1), "convert it to one of float32, bfloat16, float16"),
        (lambda: elementwise.fused(X.T, 1), r"pass x\.contiguous\(\)"),
        (lambda: elementwise.fused(X[:0], 1), "at least one element"),
        (lambda: elementwise.fused([1.0], 1), "give a torch.Tensor"),
        (lambda: elementwise.fused(X, 1, out=X[:2]), r"out is \(2, 6\)"),
        (lambda: elementwise.fused(X, 1, out=X.half()), "out is torch.float16; convert"),
        (lambda: softmax.on_chip(X[0]), "reshape it to 2 dimensions"),
        (lambda: softmax.on_chip(torch.ones(1, 40_000, device=DEVICE)), "use online"),
        (lambda: layernorm.fused_row(X, X[:2], X[0], X[0]), "residual has shape"),
        (lambda: layernorm.fused_row(X, X, X[0], X[0, :3]), "bias has shape"),
        (lambda: layernorm.fused_row(X, X, X[0].half(), X[0]), "weight is torch.float16 on .* but x is torch.float32"),
        (
            lambda: layernorm.fused_row(
                *[torch.ones(2, 20_000, device=DEVICE)] * 2, *[torch.ones(20_000, device=DEVICE)] * 2
            ),
            "at most 16384",
        ),  # fmt: skip # noqa: E501
        (lambda: attention.naive(*[torch.ones(1, 1, 4, 8, device=DEVICE)] * 3, True), "head dimension 8"),
        (lambda: attention.scores(X, X, True), "reshape it to 4 dimensions"),
        (lambda: attention.weighted_values(*[torch.ones(1, 1, 4, 16, device=DEVICE)] * 2), "p has shape"),
        (lambda: streams.exponentials(X, 0), "repeats is 0"),
        (lambda: streams.exponentials(X.half(), 1), "convert it to one of float32"),
        (lambda: streams.chase(X, 1), "convert it to one of int32, int64"),
        (lambda: streams.random_cycle(2**20, 2**12, dtype=torch.int32), "use torch.int64"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(KernelError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_tensors_out_of_reach_are_refused(monkeypatch):
    monkeypatch.setattr(_triton, "INTERPRETED", False)
    with pytest.raises(KernelError, match="move it to the current GPU, or set TRITON_INTERPRET=1"):
        elementwise.fused(torch.ones(3), 1)


# Launches ------------------------------------------------------------------------------------------------------------


def test_launches_are_those_of_the_ledger(monkeypatch):
    workloads = ledger.WORKLOADS
    x = normal(4, 16)
    for k in range(1, 9):
        with counted_launches(monkeypatch) as names:
            elementwise.unfused(x, k)
        assert len(names) == workloads["elementwise_unfused"].launches(k=k) == k
        with counted_launches(monkeypatch) as names:
            elementwise.fused(x, k)
        assert len(names) == workloads["elementwise_fused"].launches() == 1
    for version in SOFTMAX:
        with counted_launches(monkeypatch) as names:
            version(x)
        assert len(names) == workloads["softmax"].launches() == workloads["softmax_three_pass"].launches() == 1
    for version in (layernorm.fused_row, layernorm.fused_persistent):
        with counted_launches(monkeypatch) as names:
            version(x, x, x[0], x[0])
        assert len(names) == workloads["layernorm"].launches() == 1
    heads = normal(1, 2, 5, 16)
    with counted_launches(monkeypatch) as names:
        attention.naive(heads, heads, heads, True)
    assert names == ["scores_kernel", "on_chip_kernel", "weighted_values_kernel"]
    assert len(names) == workloads["attention_naive"].launches()


# Fingerprint and source ----------------------------------------------------------------------------------------------

MODULES = sorted(file.stem for file in kernels.FOLDER.glob("[!_]*.py"))
CODE = '''"""What it is."""
import math

BLOCK = 128  # why

def f(x):
    """Say."""
    # a remark
    return f"{x:{BLOCK}} {'a'}" + """kept"""
'''


def test_fingerprint_is_blind_to_remarks_and_sees_code(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "FOLDER", tmp_path)
    path = tmp_path / "op.py"

    def of(source):
        path.write_text(source, encoding="utf-8")
        return fingerprint("op")

    original = of(CODE)
    for old, new in [
        ('"""What it is."""', '"""Another\n\ntext."""\n\n'),
        ("  # why", ""),
        ('    """Say."""\n', ""),
        ("    # a remark\n", "\n    # another\n\n"),
        ("def f(x):\n", "def f(\n    x\n):  # wrapped\n\n"),
    ]:
        assert of(CODE.replace(old, new)) == original, (old, new)
    for old, new in [("128", "256"), ("{x:", "{x!r:"), ("kept", "Kept"), ("return", "y ="), ("import math\n", "")]:
        assert of(CODE.replace(old, new)) != original, (old, new)
    # A known value: the tokeniser of every supported Python must give it.
    assert original.startswith("dfab6a1bb249f882")


def test_fingerprint_follows_imports(tmp_path, monkeypatch):
    before = {name: fingerprint(name) for name in MODULES}
    for file in kernels.FOLDER.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(kernels, "FOLDER", tmp_path)
    text = (tmp_path / "softmax.py").read_text(encoding="utf-8")
    (tmp_path / "softmax.py").write_text(text.replace("tl.sum(e, axis=1)", "tl.sum(x, axis=1)"), encoding="utf-8")
    changed = {name for name in MODULES if fingerprint(name) != before[name]}
    assert changed >= {"softmax", "attention"} and not changed & {"gemm", "streams", "layernorm"}
    with pytest.raises(KernelError, match="choose from attention, decode, elementwise, flash"):
        fingerprint("nothing")


def test_every_kernel_has_its_header():
    titles = ["# One program: ", "# Grid: ", "# HBM traffic per program: ", "# This version: "]
    for name in MODULES:
        lines = (kernels.FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
        starts = [at for at, line in enumerate(lines[:-1]) if re.match(r"def \w+_kernel\(", lines[at + 1])]
        assert starts, f"{name}.py holds no kernel"
        for at, line in enumerate(lines):
            if line == "@triton.jit" and at not in starts:
                assert '"""' in "".join(lines[at + 2 : at + 6]), f"{name}.py:{at}: what a kernel calls has a docstring"
        for start in starts:
            header = lines[start - 4 : start]
            assert all(map(str.startswith, header, titles)), f"{name}.py:{start}: header must be {titles}"


def test_the_package_needs_no_torch():
    code = "import sys; from rooflab.kernels import fingerprint, check; fingerprint('attention')"
    code += "; sys.exit(bool({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nothing is interpreted, so the order is free")
def test_importing_triton_too_early_is_explained():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = "import triton; import rooflab.kernels.softmax"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "KernelError: triton was imported before" in done.stderr


# Machine code for Hopper ---------------------------------------------------------------------------------------------

H200_SHARED_BYTES = 227 * 1024
FLASH = {"fa1_kernel", "fa2_kernel", "row_sums_kernel", "keys_values_kernel", "queries_kernel", "fa3_kernel"}


GEMM = [gemm.naive, gemm.tensor_core, gemm.grouped, gemm.autotuned, gemm.split_k]
GEMM += [gemm.tma, gemm.persistent, gemm.warp_specialised]


# What a kernel that starts early reads before it waits, `async` where it may be copied several blocks ahead: weights,
# angles and the position, which no kernel of a step writes, and earlier tokens.
BEFORE_WAIT = {
    "chained_kernel": ["w_ptr"],
    "added_rows_kernel": ["async w_ptr", "norm_ptr", "w_ptr"],
    "normed_rows_kernel": ["w_ptr"],
    "add_norm_kernel": ["weight_ptr"],
    "rope_cache_kernel": ["cos_ptr", "position_ptr", "sin_ptr"],
    "qkv_cache_kernel": ["cos_ptr", "position_ptr", "sin_ptr", "w_ptr"],
    "split_kernel": ["async k_ptr", "async v_ptr", "position_ptr"],
    "combine_kernel": [],
    "swiglu_kernel": [],
}
# Loads of one element or two, beside wide ones: residual and norm; the position, and angles for both halves of a head.
NARROW = {"added_rows_kernel": 2, "qkv_cache_kernel": 5, "split_kernel": 1}


def read_before_the_wait(ptx, parameters):
    """Return the pointers through which HBM is read above the first wait for the last kernel; None without a wait.

    `parameters` are their names. Asynchronous copies say so: `async w_ptr`.
    """
    text, _, after = ptx.partition("griddepcontrol.wait")
    if not after:
        return None
    # An address comes from the pointer from which the registers come that it is made of.
    loads = re.findall(r"ld\.param\.b64\s+(%rd\d+), \[\w+_param_(\d+)\]", ptx)
    origins, grows = {register: {parameters[int(position)]} for register, position in loads}, True
    made = re.findall(r"^\s*(?:@!?%p\d+ )?(?!ld)[a-z][\w.]*\s+(%rd\d+), (.*);", ptx, re.MULTILINE)
    while grows:
        grows = False
        for register, operands in made:
            found = {name for each in re.findall(r"%rd\d+", operands) for name in origins.get(each, ())}
            grows |= not found <= origins.setdefault(register, set())
            origins[register] |= found
    reads = re.findall(r"(ld|cp\.async\.c[ag]\.shared)\.global[^;\n]*\[ ?(%rd\d+)", text)
    assert len(reads) == len(re.findall(r"ld\S*\.global|cp\.async\S*\.global", text)), "one is in another form"
    return sorted({("async " if copy != "ld" else "") + name for copy, at in reads for name in origins[at]})


def compile_for_hopper():
    """Call every wrapper with the sizes of the experiments; print, for each launch, what it compiles to on sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    types = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "i32", "int64": "i64"}
    types["float8_e4m3fn"] = "fp8e4nv"
    triton.knobs.nvidia.dump_ptxas_log = True
    triton.knobs.compilation.always_compile = True  # the log of a kernel from the cache is lost

    def run(self, *args, grid, warmup, **options):
        values = dict(zip(self.arg_names, args, strict=False))
        values |= {name: options.pop(name) for name in list(options) if name in self.arg_names}
        signature, constants, attributes = {}, {}, {}
        for position, parameter in enumerate(self.params):
            name, value = parameter.name, values[parameter.name]
            # Triton's own specialisation: 1 is a constant, multiples of 16 are known to be such.
            if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = "*" + types[str(value.dtype).removeprefix("torch.")]
            elif hasattr(value, "block_shape"):  # a TMA descriptor
                element = types[str(value.base.dtype).removeprefix("torch.")]
                layout = f",{value.layout!r}" if self.is_gluon() else ""
                signature[name] = f"tensordesc<{element}{list(value.block_shape)}{layout}>"
                continue
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
            if signature[name] not in ("constexpr", "fp32") and (not isinstance(value, int) or value % 16 == 0):
                attributes[(position,)] = [["tt.divisibility", 16]]
        source = (GluonASTSource if self.is_gluon() else ASTSource)(self, signature, constants, attributes)
        with contextlib.redirect_stdout(io.StringIO()) as log:
            compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        ptx = compiled.asm["ptx"]
        marks = {}
        if self.fn.__name__ == "fp8_block_specialised_kernel":
            code = compiled.asm["cubin"]
            none = sass.remarked(code, lambda i: (False, False))
            half = sass.remarked(code, lambda i: (i % 2 == 0, i % 2 == 1))
            marks = {name: sass.count_marks(each) for name, each in (("own", code), ("none", none), ("half", half))}
            marks["back"] = sass.remarked(none, lambda i: (True, False)) == code
        report = dict(
            kernel=self.fn.__name__,
            early=constants.get("EARLY", False),
            half={"*bf16", "*fp16"} & set(signature.values()) != set(),
            before_wait=read_before_the_wait(ptx, [name for name in signature if signature[name] != "constexpr"]),
            cubin_bytes=len(compiled.asm["cubin"]),
            shared_bytes=compiled.metadata.shared,
            loads=len(re.findall(r"ld\.global|cp\.async\.c[ag]\.", ptx)),
            wide_loads=len(re.findall(r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64|cp\.async\.cg\..*, 0x10", ptx)),
            stores=ptx.count("st.global"),
            wide_stores=len(re.findall(r"st\.global\S*\.v4\.b32|st\.global\S*\.v2\.b64", ptx)),
            tensor_core=ptx.count("wgmma.mma_async"),
            tma=ptx.count("cp.async.bulk.tensor"),
            register_moves=ptx.count("setmaxnreg"),
            marks=marks,
            registers=max(map(int, re.findall(r"Used (\d+) registers", log.getvalue()))),
            spilled_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", log.getvalue()))),
            # ptxas has a reason to let only one wgmma run at a time; C7519 says that it put in a fence, no more.
            serialised=re.findall(r"\(C75(?!19)\d\d\)", log.getvalue()),
        )
        print(json.dumps(report))

    triton.runtime.jit.JITFunction.run = run
    _triton.reachable = lambda tensor: True
    for module in (decode, flash_hopper, gemm, gemm_fp8, layernorm, softmax, streams):
        module.sm_count = lambda device: 132
    gemm.INTERPRETED, flash_hopper.INTERPRETED, gemm._capability = False, False, lambda tensor: (9, 0)
    a = torch.empty(4096, 4096, dtype=torch.bfloat16)
    for version in GEMM:
        version(a, a)
    for M in (16, 256):
        gemm.autotuned(a[:M], a)
    gemm.warp_specialised(a[:256], torch.empty(12288, 4096, dtype=torch.bfloat16))
    a, one, row = a.view(torch.float8_e4m3fn)[:, :4096].contiguous(), torch.ones(1, 1), torch.ones(4096, 1)
    gemm_fp8.fp8_tensor(a, a, one, one)
    gemm_fp8.fp8_row(a, a, row, row)
    for version in (gemm_fp8.fp8_block, gemm_fp8.fp8_block_specialised):
        for M in (256, 4096):  # narrow and wide tiles
            version(a[:M], a, torch.ones(32, M).t(), torch.ones(32, 32))
    for causal in (False, True):
        q, kv = (torch.empty(1, h, 4096, 128, dtype=torch.bfloat16) for h in (16, 4))
        flash.fa1(q, kv, kv, causal)
        lse = torch.empty(1, 16, 4096)
        flash.fa2(q, kv, kv, causal, lse=lse)
        flash.fa2_backward(q, kv, kv, q, q, lse, causal)
        flash_hopper.fa3(q, kv, kv, causal)
    q, kv = (flash_hopper.quantise_heads(each.zero_()) for each in (q, kv))
    flash_hopper.fa3_fp8(q[0], kv[0], flash_hopper.fp8_layout_of_v(kv[0]), q[1], kv[1], kv[1], True)
    position, angles = torch.zeros(1, dtype=torch.int64), torch.empty(2, 32768, 128)
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.empty(1 << 28, dtype=dtype)  # memory that no one touches is never taken
        elementwise.unfused(x, 2)
        elementwise.fused(x, 8)
        streams.copy(x)
        streams.read(x)
        streams.write(x, 1)
        for cols in (256, 4096, 16384):
            rows = x.view(-1, cols)
            layernorm.fused_row(rows, rows, rows[0], rows[0])
            layernorm.fused_persistent(rows, rows, rows[0], rows[0])
        for cols in (256, 1024, 4096, 8192, 16384, 32768):
            for version in SOFTMAX:
                version(x.view(-1, cols))
        heads = torch.empty(1, 32, 4096, 128, dtype=dtype)
        attention.naive(heads, heads, heads, True)
        cache, row = torch.empty(1, 8, 32768, 128, dtype=dtype), x[:4096].view(1, 4096)
        for early in (False, True):
            decode.add_norm(row, row, row[0], 1e-5, early=early)
            decode.add_norm(None, row, row[0], 1e-5, early=early)
            q = decode.rope_cache(x[:6144].view(1, 6144), *angles, position, cache, cache, 32, early=early)
            w, rotary = x[: 6144 * 4096].view(6144, 4096), (*angles, position, cache, cache, 32)
            decode.qkv_cache(row, w, torch.empty(1024), *rotary, early=early)
            decode.split_attention(q, cache, cache, position, early=early)
            decode.split_attention(q, cache, cache, position, splits=1, early=early)
            many = x[: 1 << 25].view(32, 8, 1024, 128)  # heads enough for larger tiles
            decode.split_attention(x[: 1 << 17].view(32, 32, 128), many, many, position, early=early)
            decode.swiglu(x[:28672].view(1, 28672), early=early)
        for N, K in ((4096, 4096), (22016, 4096), (4096, 11008)):
            for version in (gemv.rows, gemv.chained):
                version(x[:K].view(1, K), x[: N * K].view(N, K))
            w, r, squares = x[: N * K].view(N, K), x[:N].view(1, N), torch.empty(1024)
            for early in (False, True):
                gemv.normed(x[:K].view(1, K), w, squares, gated=True, early=early)
                gemv.normed(x[:K].view(1, K), w, squares, early=early)
                gemv.added(x[:K].view(1, K), w, r, x[:N], out=r, early=early)
    x = torch.empty(1 << 20)
    streams.exponentials(x, 1024)
    streams.add_one(x[:1])
    for dtype in (torch.int32, torch.int64):
        streams.chase(torch.zeros(1 << 20, dtype=dtype), 1000)


@pytest.mark.parametrize(("named", "kept"), [(None, False), ("wheel", False), ("/opt/mine/ptxas", True)])
def test_the_assembler_is_tritons_own_or_the_one_that_you_named(named, kept):
    """torch.compile names the one of PyTorch's wheel, for whatever Triton compiles after it."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_PTXAS_PATH"}
    if named:
        wheel = str(Path(torch.__file__).parent / "bin" / "ptxas")
        environment["TRITON_PTXAS_PATH"] = named = wheel if named == "wheel" else named
    code = "import os; from rooflab.kernels import _triton; print(os.environ['TRITON_PTXAS_PATH'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    own = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    assert own.exists() and done.stdout.strip() == (named if kept else str(own))


def test_all_kernels_compile_for_hopper(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    sources = "".join((kernels.FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)
    assert {report["kernel"] for report in reports} == set(re.findall(r"\.jit\b.*\ndef (\w+_kernel)", sources))
    for report in reports:
        assert report["cubin_bytes"] > 0 and report["shared_bytes"] <= H200_SHARED_BYTES, report
        assert not report["serialised"], report
        if report["kernel"] in FLASH:
            continue  # by hand: fa2 stores a number per row beside its tiles, fa1 reads and writes rows of O
        if report["tma"]:
            assert report["stores"] == 0, report  # TMA moves all tiles; what is loaded is scales
            continue
        if report["kernel"] in (
            "chase_kernel",
            "add_one_kernel",
            "read_kernel",
            "rows_kernel",
            "chained_kernel",
            "added_rows_kernel",
            "normed_rows_kernel",
            "naive_kernel",
            "rope_cache_kernel",
            "qkv_cache_kernel",
            "split_kernel",
            "combine_kernel",
        ):
            continue  # one element at a time, or a few results per program
        if report["kernel"] == "grouped_kernel" and not report["tensor_core"]:
            assert report["wide_loads"] == report["loads"] > 0, report
            continue  # a tile of 16 rows: four results per thread
        assert report["wide_loads"] == report["loads"] and report["wide_stores"] == report["stores"] > 0, report
    # The matrix products of 16-bit and 8-bit operands run on the Tensor Cores; naive and mma.sync are not among these.
    products = {report["kernel"] for report in reports if report["tensor_core"]} - FLASH
    by_tma = {"tma_kernel", "persistent_kernel", "warp_specialised_kernel", "fp8_tensor_kernel", "fp8_row_kernel"}
    by_tma |= {"turned_kernel", "fp8_block_kernel", "fp8_block_specialised_kernel"}
    by_pointers = {"tensor_core_kernel", "grouped_kernel"}
    assert products == by_tma | by_pointers | {"scores_kernel", "weighted_values_kernel"}
    assert {report["kernel"] for report in reports if report["tma"]} - FLASH == by_tma
    in_flash = [report for report in reports if report["kernel"] in FLASH - {"fa1_kernel", "row_sums_kernel"}]
    assert all(report["tma"] and report["tensor_core"] for report in in_flash)
    # A few registers of the masked loop are all that may spill.
    spilled = [(report["spilled_bytes"], report["kernel"]) for report in reports if report["kernel"] in FLASH]
    assert max(spilled) <= (256, ""), max(spilled)
    for report in reports:
        if report["kernel"] in by_tma | by_pointers | {"naive_kernel"}:
            assert report["spilled_bytes"] == 0, report
        if report["kernel"].endswith("specialised_kernel"):
            # Two consumers, each with four wgmma of 32 bytes of K a product; FP8 has two products of 64 rows for each
            # block, others one of 128 or 64 rows. Registers move from the producer.
            products = 2 if report["kernel"].startswith("fp8") else 1
            assert report["tensor_core"] == 8 * products and report["register_moves"] > 0, report
    # 64 rows of each consumer's columns, twice, with a row's scale in common: with half as many kept, it is 7 % slower.
    blocks = [report for report in reports if report["kernel"] == "fp8_block_specialised_kernel"]
    assert [report["marks"]["own"]["multiply_adds"] for report in blocks] == [128, 256], blocks
    for report in blocks:
        own, none, half = (report["marks"][name] for name in ("own", "none", "half"))
        assert own["keeping"] > 0.9 * own["multiply_adds"] and own["yielding"] == 0, report
        # What the marks experiment does to them, as the disassembler then reads it; and back, to the bit.
        shared = own["keeping"] - none["keeping"]
        assert shared > 0.9 * own["multiply_adds"] and none["yielding"] == 0 and report["marks"]["back"], report
        assert own["keeping"] - half["keeping"] == half["yielding"] == shared / 2, report
    read = {"read_kernel", "rows_kernel", "chained_kernel", "normed_rows_kernel"}
    for report in reports:
        if report["kernel"] in read | set(NARROW):
            assert report["loads"] - report["wide_loads"] == NARROW.get(report["kernel"], 0) < report["loads"], report
    assert {report["kernel"] for report in reports if report["early"]} == set(BEFORE_WAIT)
    for report in reports:
        assert report["before_wait"] == (BEFORE_WAIT[report["kernel"]] if report["early"] else None), report
        # fp32 is for proofs, and may spill; attention does not.
        if report["kernel"] in BEFORE_WAIT and (report["half"] or report["kernel"] == "split_kernel"):
            assert report["spilled_bytes"] == 0, report


if __name__ == "__main__":
    compile_for_hopper()
