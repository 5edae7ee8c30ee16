"""Counts against hand derivations, an independent counter and brute force; LaTeX, NumPy and SymPy agree."""

import math
import re

import numpy as np
import pytest
import sympy
import torch
from torch.utils.flop_counter import FlopCounterMode

from rooflab import ledger
from rooflab.ledger import SYMBOLS, WORKLOADS, Demand, Formula, LedgerError
from rooflab.units import FLOP, UnitError, byte, element
from rooflab.widgets.explorer import all_formulas

BF16 = 2


def random_values(formula, rng, size):
    """Return `size` values per symbol: whole numbers for counts, log-uniform over many decades for the rest."""
    values = {}
    for symbol in formula.symbols:
        if symbol.name in ("b", "c"):
            values[symbol.name] = rng.choice([0.5, 1, 2, 4], size)
        elif symbol.unit == 1:
            values[symbol.name] = rng.integers(1, 100_000, size)
        else:
            values[symbol.name] = 10 ** rng.uniform(-9, 16, size)
    return values


@pytest.mark.parametrize("formula", all_formulas(), ids=lambda formula: formula.name)
def test_numpy_equals_sympy(formula):
    rng = np.random.default_rng(1)
    values = random_values(formula, rng, 25)
    got = np.broadcast_to(formula(**values), 25)
    for i in range(25):
        exact = formula.expr.subs({s: sympy.nsimplify(values[s.name][i].item()) for s in formula.symbols})
        assert got[i] == pytest.approx(float(exact), rel=1e-12)


def read_latex(text, symbols):
    """Return the SymPy expression that a formula's LaTeX spells; juxtaposition multiplies."""
    for mark, call in ((r"\min\left(", "Min("), (r"\max\left(", "Max("), (r"\left\lceil{", "ceiling(")):
        text = text.replace(mark, f" {call}")
    text = text.replace(r"}\right\rceil", ")").replace(r"\left(", "(").replace(r"\right)", ")")
    for name, symbol in sorted(((sympy.latex(s), s) for s in symbols), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<![\w\\]){re.escape(name)}(?![\w}}])|{re.escape(name)}(?=}})", f" s[{symbol.rank}] ", text)
    fraction = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
    while fraction.search(text):
        text = fraction.sub(r" ((\1)/(\2)) ", text)
    text = re.sub(r"\^\{(\d+)\}", r"**\1", text)
    tokens = re.findall(r"s\[\d+\]|\w+\(|\d+|\*\*|[-+/(),]", text)
    product = "".join(
        token + ("*" if re.fullmatch(r"s\[\d+\]|\d+|\)", token) and re.match(r"s\[|\d|\(|\w+\(", following) else "")
        for token, following in zip(tokens, [*tokens[1:], ""], strict=True)
    )
    return eval(product, vars(sympy) | {"s": {symbol.rank: symbol for symbol in symbols}})


@pytest.mark.parametrize("formula", all_formulas(), ids=lambda formula: formula.name)
def test_latex_means_the_same(formula):
    numbers = {symbol: sympy.Integer(2 * index + 3) for index, symbol in enumerate(formula.symbols)}
    read = sympy.sympify(read_latex(formula.latex(), formula.symbols))
    assert read.subs(numbers) == formula.expr.subs(numbers)


def test_gemm_flop_equals_torchs_counter():
    shape = dict(M=48, N=96, K=40)
    with FlopCounterMode(display=False) as counter:
        torch.empty(48, 40, device="meta") @ torch.empty(40, 96, device="meta")
    assert WORKLOADS["gemm"].flop(**shape) == counter.get_total_flops()


@pytest.mark.parametrize(("h", "h_kv"), [(8, 8), (8, 2)])
def test_attention_flop_equals_torchs_counter(h, h_kv):
    B, L, d_h = 2, 64, 16
    q = torch.empty(B, h, L, d_h, device="meta")
    k = torch.empty(B, h, L, d_h, device="meta")
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(q, k, k)
    assert WORKLOADS["attention_naive"].flop(B=B, L=L, h=h, d_h=d_h) == counter.get_total_flops()
    full = WORKLOADS["attention_prefill"].flop(B=B, L=L, h=h, h_kv=h_kv, d_h=d_h, c=1)
    assert full == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(q[:, :, :1], k, k)
    assert WORKLOADS["attention_decode"].flop(B=B, L=L, h=h, d_h=d_h) == counter.get_total_flops()


def nbytes(*shapes, dtype=torch.bfloat16):
    return sum(torch.empty(shape, dtype=dtype, device="meta").nbytes for shape in shapes)


def test_compulsory_bytes_equal_the_sizes_of_real_tensors():
    n, M, N, K, R, C = 1000, 3, 5, 7, 11, 13
    expected = {
        "dot": nbytes((n,), (n,)),
        "axpy": nbytes((n,), (n,), (n,)),
        "elementwise_unfused": 4 * nbytes((n,), (n,)),
        "elementwise_fused": nbytes((n,), (n,)),
        "row_reduction": nbytes((R, C), (R,)),
        "layernorm": nbytes((R, C), (R, C), (C,), (C,)),
        "softmax": nbytes((R, C), (R, C)),
        "softmax_three_pass": nbytes((R, C), (R, C), (R, C), (R, C)),
        "norm_relu_add_unfused": nbytes(*[(R, C)] * 7, (C,), (C,)),
        "norm_relu_add_fused": nbytes((R, C), (R, C), (R, C), (C,), (C,)),
        "attention_naive": nbytes(*[(2, 8, 64, 16)] * 4, *[(2, 8, 64, 64)] * 4),
        "gemv": nbytes((M, K), (K,), (M,)),
        "gemm": nbytes((M, K), (K, N), (M, N)),
        "attention_prefill": nbytes((2, 8, 64, 16), (2, 2, 64, 16), (2, 2, 64, 16), (2, 8, 64, 16)),
        "attention_decode": nbytes((2, 8, 1, 16), (2, 2, 64, 16), (2, 2, 64, 16), (2, 8, 1, 16)),
    }
    values = dict(n=n, k=4, M=M, N=N, K=K, R=R, C=C, B=2, L=64, h=8, h_kv=2, d_h=16, b=BF16)
    assert expected.keys() == WORKLOADS.keys(), "a workload without a byte test"
    for name, count in expected.items():
        assert WORKLOADS[name].traffic["hbm"](**values) == count, name


def test_elementwise_flop_and_launches():
    values = dict(n=1000, k=4, b=2)
    assert WORKLOADS["elementwise_unfused"].flop(**values) == WORKLOADS["elementwise_fused"].flop(**values) == 4000
    assert WORKLOADS["elementwise_unfused"].launches(**values) == 4
    assert WORKLOADS["elementwise_fused"].launches(**values) == 1


def operations(function, *arguments):
    """Run `function` on numbers that count their own arithmetic, and return the count."""

    class Counted:
        total = 0

        def __init__(self, value):
            self.value = value

        def _count(self, value):
            Counted.total += 1
            return Counted(value)

        def __add__(self, other):
            return self._count(self.value + other.value)

        def __sub__(self, other):
            return self._count(self.value - other.value)

        def __mul__(self, other):
            return self._count(self.value * other.value)

        def __truediv__(self, other):
            return self._count(self.value / other.value)

        def maximum(self, other):
            return self._count(max(self.value, other.value))

        def exp(self):
            return self._count(math.exp(self.value))

    function(*[[Counted(x) for x in argument] for argument in arguments])
    return Counted.total


def softmax_row(x):
    top = x[0]
    for each in x[1:]:
        top = top.maximum(each)
    weights = [(each - top).exp() for each in x]
    total = weights[0]
    for each in weights[1:]:
        total = total + each
    return [each / total for each in weights]


def layernorm_row(x, gain, shift, size):
    total = x[0]
    for each in x[1:]:
        total = total + each
    mean = total / size[0]
    centred = [each - mean for each in x]
    squares = centred[0] * centred[0]
    for each in centred[1:]:
        squares = squares + each * each
    scale = squares / size[0]
    return [each * scale * g + s for each, g, s in zip(centred, gain, shift, strict=True)]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("softmax", lambda C: operations(softmax_row, range(C))),
        ("layernorm", lambda C: operations(layernorm_row, range(C), range(C), range(C), [C])),
    ],
)
def test_flop_per_element_equals_a_counted_loop(name, count):
    """The loop's few operations per row vanish against those per element."""
    C = 2000
    assert WORKLOADS[name].flop(R=1, C=C) == pytest.approx(count(C), rel=2e-3)


@pytest.mark.parametrize(
    ("name", "values", "intensity"),
    [
        # In bf16: L/2 for full attention, L/4 causal, L*g/(g+1) for groups of g, h/h_kv in decode.
        ("attention_prefill", dict(L=4096, h=32, h_kv=32, c=1), 2048),
        ("attention_prefill", dict(L=4096, h=32, h_kv=32, c=0.5), 1024),
        ("attention_prefill", dict(L=4096, h=64, h_kv=8, c=1), 4096 * 8 / 9),
        # The naive attention tends to d_h/2 in bf16, and has L*d_h/(b*(L + d_h)) at 4096: 62.06.
        ("attention_naive", dict(L=4096, d_h=128), 4096 * 128 / (2 * (4096 + 128))),
        ("attention_decode", dict(L=10**9, h=64, h_kv=8), 8),
        ("gemm", dict(M=4096, N=4096, K=4096), 4096 / 3),
        ("dot", dict(), 0.5),
        ("softmax", dict(), 1.25),
    ],
)
def test_known_intensities(name, values, intensity):
    assert WORKLOADS[name].intensity()(b=BF16, **values) == pytest.approx(intensity, rel=1e-7)


def test_l2_traffic_equals_a_walk_over_the_tiles():
    M, N, K, tile = 300, 500, 64, 128
    elements = 0
    for row in range(0, M, tile):
        for column in range(0, N, tile):
            rows, columns = min(tile, M - row), min(tile, N - column)
            elements += rows * K + K * columns + rows * columns
    assert WORKLOADS["gemm"].traffic["l2"](M=M, N=N, K=K, b=BF16, B_M=tile, B_N=tile) == BF16 * elements


def test_a_slip_in_a_formula_raises_and_names_it():
    n = SYMBOLS["n"]
    with pytest.raises(UnitError, match="axpy_bytes: expected byte, got element"):
        Formula("axpy_bytes", 3 * n * element, byte)
    with pytest.raises(UnitError, match="peak: expected FLOP, got FLOP/s"):
        Formula("peak", SYMBOLS["P"] * 1, FLOP)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (dict(M=4, N=4), "needs K"),
        (dict(M=4, N=4, K=4, k_typo=1), "unknown symbol 'k_typo'"),
        (dict(M=4, N=4, K=0), "K is 0; it must be positive"),
        (dict(M=4, N=4, K=float("nan")), "K is nan; it must be positive"),
        (dict(M=4, N=-1, K=4), "N is -1; it must be positive"),
        (dict(M="many", N=4, K=4), "M is 'many'; it must be a number"),
        (dict(M=np.array([1, math.inf]), N=4, K=4), "must be positive and finite"),
    ],
)
def test_bad_values_raise(values, said):
    with pytest.raises(LedgerError) as error:
        WORKLOADS["gemm"].flop(**values)
    assert said in str(error.value)


def test_bad_demands_raise():
    with pytest.raises(LedgerError, match="give work"):
        Demand("x", {}, {"hbm": 1})
    with pytest.raises(LedgerError, match="hbm is nan"):
        Demand("x", {"tensor": 1}, {"hbm": math.nan})
    with pytest.raises(LedgerError, match="no bytes at 'l3'"):
        Demand("x", {"tensor": 1}, {"hbm": 1}).intensity_flop_per_byte("l3")
    with pytest.raises(LedgerError, match="counts no traffic at 'l3'"):
        WORKLOADS["gemm"].intensity("l3")


def test_formula_names_and_symbol_meanings_are_unique():
    names = [formula.name for formula in all_formulas()]
    assert len(names) == len(set(names)) > 30
    meanings = [symbol.meaning for symbol in SYMBOLS.values()]
    assert len(meanings) == len(set(meanings))


def test_mathml_tokens_join_to_the_whole_formula():
    tokens = WORKLOADS["attention_decode"].traffic["hbm"].mathml_tokens()
    assert [token[0] for token in tokens if isinstance(token, list)] == ["b", "B", "d_h", "L", "h_kv", "h"]
    joined = "".join(token if isinstance(token, str) else token[1] for token in tokens)
    assert joined == ledger._mathml(WORKLOADS["attention_decode"].traffic["hbm"].expr)
