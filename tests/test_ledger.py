"""Counts against hand derivations, an independent counter and brute force; LaTeX, NumPy and SymPy agree."""

import itertools
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
FORMULAS = all_formulas()


def random_values(formula, rng, size):
    """Return `size` values per symbol: whole numbers for counts, log-uniform over many decades for the rest.

    The context holds the new tokens, and a layer all the experts of one token, whose number of tokens is an exponent.
    """
    values = {}
    powers = any(power.exp.free_symbols for power in formula.expr.atoms(sympy.Pow))
    for symbol in formula.symbols:
        if symbol.name == "c":
            values[symbol.name] = rng.choice([0.5, 1], size)
        elif symbol.name == "b":
            values[symbol.name] = rng.choice([0.5, 1, 2, 4], size)
        elif symbol.unit == 1:
            values[symbol.name] = rng.integers(1, 12 if powers else 100_000, size)
        else:
            values[symbol.name] = 10 ** rng.uniform(-9, 16, size)
    for whole, part in (("L", "s"), ("n_e", "k_e")):
        if whole in values and part in values:
            values[whole] += values[part]
    return values


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
def test_numpy_equals_sympy(formula):
    rng = np.random.default_rng(1)
    values = random_values(formula, rng, 25)
    got = np.broadcast_to(formula(**values), 25)
    for i in range(25):
        exact = formula.expr.subs({s: sympy.Rational(values[s.name][i].item()) for s in formula.symbols})
        assert got[i] == pytest.approx(float(exact), rel=1e-12)


def read_latex(text, symbols):
    """Return the SymPy expression that a formula's LaTeX spells; juxtaposition multiplies."""
    for mark, call in ((r"\min\left(", "Min("), (r"\max\left(", "Max("), (r"\left\lceil{", "ceiling(")):
        text = text.replace(mark, f" {call}")
    text = text.replace(r"}\right\rceil", ")").replace(r"\left(", "(").replace(r"\right)", ")")
    # A symbol becomes @ and its number, which no other symbol's name can be a part of.
    for name, symbol in sorted(((sympy.latex(s), s) for s in symbols), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<![\w\\]){re.escape(name)}(?![\w}}])|{re.escape(name)}(?=}})", f" @{symbol.rank} ", text)
    text = re.sub(r"\^\{([^{}]*)\}", r"**(\1)", text)
    fraction = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
    while fraction.search(text):
        text = fraction.sub(r" ((\1)/(\2)) ", text)
    tokens = re.findall(r"@\d+|\w+\(|\d+|\*\*|[-+/(),]", text)
    product = "".join(
        token + ("*" if re.fullmatch(r"@?\d+|\)", token) and re.match(r"@|\d|\(|\w+\(", following) else "")
        for token, following in zip(tokens, [*tokens[1:], ""], strict=True)
    )
    numbered = {symbol.rank: symbol for symbol in symbols}
    return eval(re.sub(r"@(\d+)", r"s[\1]", product), vars(sympy) | {"s": numbered})


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
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
        "gemm_waves": nbytes((M, K), (K, N), (M, N)),
        "attention_prefill": nbytes((2, 8, 64, 16), (2, 2, 64, 16), (2, 2, 64, 16), (2, 8, 64, 16)),
        "attention_decode": nbytes((2, 8, 1, 16), (2, 2, 64, 16), (2, 2, 64, 16), (2, 8, 1, 16)),
        "attention_tile": nbytes(*[(64, 16)] * 4) / 8,  # one of 2 by 4 tiles of a head
    }
    values = dict(n=n, k=4, M=M, N=N, K=K, R=R, C=C, B=2, L=64, h=8, h_kv=2, d_h=16, b=BF16, B_M=32, B_N=16)
    tested = expected.keys() | PART_SHAPES.keys() | {"step"}  # the sum of a model's parts: tests/test_step.py
    assert tested == WORKLOADS.keys(), "a workload without a byte test"
    for name, count in expected.items():
        assert WORKLOADS[name].traffic["hbm"](**values) == count, name


# Sizes of a model's parts, no two alike, and three data types, so that no size can stand for another.
PART = dict(B=2, s=3, L=64, h=8, h_kv=2, d_h=16, d=11, d_in=5, d_out=7, d_ff=13, w=19, m=3, n_e=4, k_e=2)
PART |= dict(r_kv=24, d_r=10, c=1)
PART_TYPES = {"weights": torch.int8, "cache": torch.float16, "activations": torch.float32}
PART_BYTES = dict(b_w=1, b_kv=2, b_a=4)
QUERIES, KEYS, SCORES = (2, 8, 3, 16), (2, 2, 64, 16), (2, 8, 3, 64)
PART_SHAPES = {
    "linear": {"weights": [(5, 7)], "activations": [(2, 3, 5), (2, 3, 7)]},
    "linear_per_head": {"weights": [(8, 5, 7)], "activations": [(2, 8, 3, 5), (2, 8, 3, 7)]},
    # Weights of one expert; how many of them are read is counted below. Two experts work on each token.
    "experts": {
        "weights": [(11, 13), (11, 13), (13, 11)],
        "activations": [(2, 3, 2, 11), (2, 3, 2, 13)] * 2 + [(2, 3, 2, 13), (2, 3, 2, 11)],
    },
    "attention": {"cache": [KEYS] * 2, "activations": [QUERIES] * 2},
    "attention_apart": {"cache": [KEYS] * 2, "activations": [QUERIES] * 2 + [SCORES] * 4},
    "attention_latent": {"cache": [(2, 64, 24 + 10)], "activations": [(2, 8, 3, 24 + 10), (2, 8, 3, 24)]},
    "cache_write": {"cache": [(2, 3, 19)]},
    "embedding": {"weights": [(2, 3, 11)], "activations": [(2, 3, 11)]},
    "norm": {"activations": [(2, 3, 11)] * 2},
    "vectors": {"weights": [(19,)]},
    "mlp_activation": {"activations": [(2, 3, 13)] * 3},
}


def distinct_experts(tokens, experts, each):
    """Return how many experts are picked at least once, averaged over every way in which the tokens can pick."""
    ways = list(itertools.product(itertools.combinations(range(experts), each), repeat=tokens))
    return sum(len(set().union(*way)) for way in ways) / len(ways)


@pytest.mark.parametrize("name", PART_SHAPES)
def test_bytes_of_a_models_part_equal_the_sizes_of_real_tensors(name):
    workload, shapes = WORKLOADS[name], PART_SHAPES[name]
    sizes = {kind: nbytes(*shapes[kind], dtype=PART_TYPES[kind]) for kind in shapes}
    if name == "experts":
        sizes["weights"] *= distinct_experts(6, 4, 2)
    assert {kind: formula(**PART, **PART_BYTES) for kind, formula in workload.parts.items()} == sizes
    assert workload.traffic["hbm"](**PART, **PART_BYTES) == sum(sizes.values())


def test_an_mlp_without_a_gate_has_one_input_less():
    activations = WORKLOADS["mlp_activation"].parts["activations"]
    assert activations(**PART | {"m": 2}, b_a=4) == nbytes(*[(2, 3, 13)] * 2, dtype=torch.float32)


@pytest.mark.parametrize("name", [name for name, workload in WORKLOADS.items() if workload.parts])
def test_parts_sum_to_the_whole(name):
    workload = WORKLOADS[name]
    parts = sum(formula.expr for formula in workload.parts.values())
    assert sympy.expand(parts - workload.traffic["hbm"].expr) == 0
    assert set(workload.parts) == {*PART_SHAPES.get(name, ("weights", "cache", "activations"))}


def counted(*products):
    """Return torch's count for matrix products of these shapes."""
    with FlopCounterMode(display=False) as counter:
        for left, right in products:
            torch.empty(left, device="meta") @ torch.empty(right, device="meta")
    return counter.get_total_flops()


def test_flop_of_a_models_parts_equals_torchs_counter():
    keys, latents = (2, 8, 16, 64), (2, 8, 34, 64)
    expected = {
        "linear": counted(((2, 3, 5), (5, 7))),
        "linear_per_head": counted(((2, 8, 3, 5), (2, 8, 5, 7))),
        "experts": counted(*[((12, 11), (11, 13))] * 2, ((12, 13), (13, 11))),  # 6 tokens, 2 experts each
        "attention": counted((QUERIES, keys), (SCORES, (2, 8, 64, 16))),
        "attention_apart": counted((QUERIES, keys), (SCORES, (2, 8, 64, 16))),
        "attention_latent": counted(((2, 8, 3, 34), latents), (SCORES, (2, 8, 64, 24))),
        "cache_write": 0,
        "embedding": 0,
        "norm": 4 * 2 * 3 * 11,  # a square, a sum, a scaling and a weight for each element
        "vectors": 0,
        "mlp_activation": 2 * 3 * 13,
    }
    assert {name: WORKLOADS[name].flop(**PART) for name in PART_SHAPES} == expected
    launches = {"experts": 3, "attention_apart": 3, "vectors": 0}
    assert {name: WORKLOADS[name].launches(**PART) for name in PART_SHAPES} == dict.fromkeys(expected, 1) | launches


@pytest.mark.parametrize(("L", "s"), [(64, 64), (64, 1), (64, 2), (100, 37)])
def test_causal_pairs_of_new_tokens_equal_a_walk_over_them(L, s):
    pairs = sum(key <= query for query in range(L - s, L) for key in range(L))
    values = PART | {"L": L, "s": s, "c": 0.5}
    assert WORKLOADS["attention"].flop(**values) == 4 * 2 * 8 * 16 * pairs
    assert WORKLOADS["attention_latent"].flop(**values) == 2 * 2 * 8 * (24 + 10 + 24) * pairs


def test_an_all_reduce_equals_a_ring_of_sends():
    """Each of t GPUs sends a t-th of its data t - 1 times to add it up, and as often to hand the sums round."""
    B, s, d, t = 2, 3, 8, 4
    piece = nbytes((B, s, d // t), dtype=torch.float32)
    assert ledger.ALL_REDUCE_BYTES(B=B, s=s, d=d, n_gpu=t, b_a=4) == 2 * (t - 1) * piece
    assert ledger.ALL_REDUCE_BYTES(B=B, s=s, d=d, n_gpu=1, b_a=4) == 0


def test_the_ridge_in_tokens():
    """With that many tokens, a linear layer does as many FLOP per byte of its weights as the ridge asks for."""
    tokens = ledger.LINEAR_RIDGE_TOKENS(P=800e12, beta=4e12, b_w=2)
    linear = WORKLOADS["linear"]
    values = dict(B=tokens, s=1, d_in=4096, d_out=4096, b_w=2)
    assert tokens == 200 and linear.flop(**values) / linear.parts["weights"](**values) == 800e12 / 4e12


def test_at_the_break_even_size_a_kernel_takes_as_long_in_memory_as_its_launch():
    assert ledger.BREAK_EVEN_BYTES(beta=4.8e12, t_launch=5e-6) == pytest.approx(24e6)
    assert ledger.OTHERS["break_even_bytes"] is ledger.BREAK_EVEN_BYTES
    for kernels, beta, t_launch in itertools.product((1, 7, 224), (1.6e12, 4.8e12), (0.6e-6, 13e-6)):
        moved = kernels * ledger.BREAK_EVEN_BYTES(beta=beta, t_launch=t_launch)
        launches_s = ledger.LAUNCH_TIME(n_launch=kernels, t_launch=t_launch)
        assert ledger.MEMORY_TIME(Q=moved, beta=beta) == pytest.approx(launches_s)


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


def test_every_formula_of_the_module_is_among_those_that_are_compared():
    apart = {name for name, each in vars(ledger).items() if isinstance(each, Formula) and each not in FORMULAS}
    assert not apart, "put it into ROOFLINE, _OTHERS or a workload of src/rooflab/ledger.py"


def test_mathml_tokens_join_to_the_whole_formula():
    tokens = WORKLOADS["attention_decode"].traffic["hbm"].mathml_tokens()
    assert [token[0] for token in tokens if isinstance(token, list)] == ["b", "B", "d_h", "L", "h_kv", "h"]
    joined = "".join(token if isinstance(token, str) else token[1] for token in tokens)
    assert joined == ledger._mathml(WORKLOADS["attention_decode"].traffic["hbm"].expr)


# A tile of attention. Rates are per clock and SM, so that seconds are clocks: matrix FLOP, exponentials, vector FLOP.
A100 = dict(P=2048, P_exp=16, P_v=128)
H100 = dict(P=4096, P_exp=16, P_v=256)
H100_FP8 = H100 | dict(P=8192)
B200 = dict(P=8192, P_exp=16, P_v=256)


def tile_clocks(rates, **sizes):
    """Return the clocks that each unit needs for a tile of 128 queries, 128 keys and heads of 128."""
    work = WORKLOADS["attention_tile"].work
    amounts = {unit: formula(**dict(B_M=128, B_N=128, d_h=128) | sizes) for unit, formula in work.items()}
    peaks = {"tensor": rates["P"], "exp": rates["P_exp"], "vector": rates["P_v"]}
    return {unit: ledger.COMPUTE_TIME.numpy(amounts[unit], peaks[unit]) for unit in work}


def test_flashattention_3_finds_half_the_time_of_the_products_in_the_exponentials():
    """Its section 3: 989 TFLOP/s of products, 3.9 of special functions, 512 times as many FLOP at heads of 128."""
    work = WORKLOADS["attention_tile"].work
    amounts = {unit: formula(B_M=128, B_N=128, d_h=128) for unit, formula in work.items()}
    assert amounts["tensor"] / amounts["exp"] == 512
    assert amounts["exp"] / 3.9e12 / (amounts["tensor"] / 989e12) == pytest.approx(0.5, abs=0.01)
    assert amounts["exp"] / 3.9e12 / (amounts["tensor"] / 1979e12) == pytest.approx(1, abs=0.01)  # in FP8


@pytest.mark.parametrize(
    ("rates", "d_h", "tensor", "exp"),
    [
        # Clocks per score: 4 d_h over the rate of the products, and a sixteenth. FlashAttention-4, section 2.2, has
        # 512 / 8192 = 1/16 for the B200.
        (A100, 64, 0.125, 0.0625),
        (A100, 128, 0.25, 0.0625),
        (H100, 64, 0.0625, 0.0625),
        (H100, 128, 0.125, 0.0625),
        (H100, 256, 0.25, 0.0625),
        (H100_FP8, 128, 0.0625, 0.0625),
        (B200, 64, 0.03125, 0.0625),
        (B200, 128, 0.0625, 0.0625),
    ],
)
def test_clocks_of_a_tile_equal_the_papers(rates, d_h, tensor, exp):
    clocks = tile_clocks(rates, d_h=d_h)
    assert (clocks["tensor"], clocks["exp"]) == (128 * 128 * tensor, 128 * 128 * exp)
    assert clocks["exp"] / clocks["tensor"] == ledger.EXP_OVER_MMA(P=rates["P"], d_h=d_h, P_exp=16)


def test_the_rest_of_a_tile_equals_a_count_of_slots():
    """One tile of scores and of the output, element by element; a conversion makes two numbers."""
    B_M, B_N, d_h, slots = 3, 8, 5, 0
    for _query in range(B_M):
        for key in range(B_N):
            slots += len(("maximum", "scale and subtract", "sum"))
            slots += key % 2  # converted with its neighbour
        slots += d_h  # the output so far, scaled to the new maximum
    assert WORKLOADS["attention_tile"].work["vector"](B_M=B_M, B_N=B_N, d_h=d_h) == 2 * slots


def test_the_rest_of_a_tile_is_what_a_compiled_kernel_executes():
    """The book's Hopper kernel has, per thread and tile of 64 scores and 64 elements of the output, of each of
    maxima, sums and products 68, 66 scalings with subtraction and 32 conversions, besides 16 MMAs and 66 exponentials.
    """
    executed = 3 * 68 + 66 + 32
    counted = WORKLOADS["attention_tile"].work["vector"](B_M=64, B_N=128, d_h=128) / 2 / 128  # 128 threads
    assert counted == 64 * 3.5 + 64 and counted == pytest.approx(executed, rel=0.05)


@pytest.mark.parametrize(
    ("rates", "d_h", "rest", "serial_share", "overlap_share"),
    [
        # By hand, with B_N = 128, in units of the products' time. The rest is (7 + 2 d_h / 128) / (rate of the vector
        # units) clocks per score: 9/128 on the A100 and 9/256 else for d_h = 128, 8/128 and 8/256 for d_h = 64.
        (A100, 64, 1 / 2, 1 / (1 + 1 / 2 + 1 / 2), 1),
        (A100, 128, 9 / 32, 1 / (1 + 1 / 4 + 9 / 32), 1),
        (H100, 64, 1 / 2, 1 / (1 + 1 + 1 / 2), 1),
        (H100, 128, 9 / 32, 1 / (1 + 1 / 2 + 9 / 32), 1),
        (H100_FP8, 64, 1, 1 / (1 + 2 + 1), 1 / 2),
        (H100_FP8, 128, 9 / 16, 1 / (1 + 1 + 9 / 16), 1),
        (B200, 64, 1, 1 / (1 + 2 + 1), 1 / 2),
        (B200, 128, 9 / 16, 1 / (1 + 1 + 9 / 16), 1),
    ],
)
def test_shares_of_the_matrix_peak(rates, d_h, rest, serial_share, overlap_share):
    sizes = dict(B_M=192, B_N=128, d_h=d_h)
    clocks = tile_clocks(rates, **sizes)
    assert clocks["vector"] / clocks["tensor"] == pytest.approx(rest)
    assert ledger.TILE_SERIAL_TIME(**sizes, **rates) == pytest.approx(sum(clocks.values()))
    assert ledger.TILE_OVERLAP_TIME(**sizes, **rates) == pytest.approx(max(clocks.values()))
    shares = {name: value for name, value in sizes.items() if name != "B_M"} | rates
    assert ledger.TILE_SERIAL_SHARE(**shares) == pytest.approx(serial_share)
    assert ledger.TILE_OVERLAP_SHARE(**shares) == pytest.approx(overlap_share)


def test_perfect_overlap_gains_most_where_no_unit_leads():
    sizes = dict(B_M=128, B_N=128, d_h=128)
    gain = {
        name: ledger.TILE_SERIAL_TIME(**sizes, **rates) / ledger.TILE_OVERLAP_TIME(**sizes, **rates)
        for name, rates in {"A100": A100, "H100": H100, "H100 FP8": H100_FP8, "B200": B200}.items()
    }
    by_hand = {"A100": 1 + 1 / 4 + 9 / 32, "H100": 1 + 1 / 2 + 9 / 32, "H100 FP8": 1 + 1 + 9 / 16, "B200": 2 + 9 / 16}
    assert gain == pytest.approx(by_hand)


def test_the_tiles_of_a_head_add_up_to_its_attention():
    L, B_M, B_N = 4096, 128, 64
    values = dict(L=L, d_h=128, b=BF16)
    tiles = (L // B_M) * (L // B_N)
    tile, whole = WORKLOADS["attention_tile"], WORKLOADS["attention_prefill"]
    one_head = dict(B=1, h=1, h_kv=1, c=1)
    assert tiles * tile.flop(**values, B_M=B_M, B_N=B_N) == whole.flop(**values, **one_head)
    assert tiles * tile.traffic["hbm"](**values, B_M=B_M, B_N=B_N) == whole.traffic["hbm"](**values, **one_head)
    assert tiles * tile.launches(**values, B_M=B_M, B_N=B_N) == 1
    from_l2 = sum(nbytes((B_M, 128), (B_M, 128), (L, 128), (L, 128)) for _block in range(L // B_M))
    assert tiles * tile.traffic["l2"](**values, B_M=B_M, B_N=B_N) == from_l2


@pytest.mark.parametrize(("B", "h", "L"), [(1, 16, 16384), (8, 16, 2048), (1, 1, 100), (3, 7, 1000)])
def test_blocks_of_queries_fill_the_sms(B, h, L):
    """FlashAttention-2 has a program for each block of queries, FlashAttention-1 one for each head."""
    n_sm, B_M = 108, 128

    def filled(programs):
        queries, clocks = 0, 0
        while programs:
            queries, clocks = queries + sum(programs[:n_sm]), clocks + max(programs[:n_sm])
            programs = programs[n_sm:]
        return queries / (n_sm * clocks)

    blocks = [B_M] * (L // B_M) + ([L % B_M] if L % B_M else [])
    whole = [B_M] * len(blocks)  # the last block of a head takes as long as a full one
    share = ledger.BLOCKS_FILLED_SHARE(B=B, h=h, L=L, B_M=B_M, n_SM=n_sm)
    assert share == pytest.approx(filled(whole * B * h) * sum(blocks) / sum(whole))
    assert ledger.HEADS_FILLED_SHARE(B=B, h=h, n_SM=n_sm) == pytest.approx(filled([L] * B * h))
    # The same blocks are the tiles of a matrix of L rows and a column for each head.
    waves = ledger.WAVES(M=L, N=B * h, B_M=B_M, B_N=1, n_SM=n_sm)
    assert share == pytest.approx(B * h * L / (B_M * n_sm * waves))


def test_one_long_sequence_leaves_flashattention_1_idle():
    """16 heads on the 108 SMs of an A100: 16 programs of one kind, 2048 in 19 waves of the other."""
    assert ledger.HEADS_FILLED_SHARE(B=1, h=16, n_SM=108) == pytest.approx(16 / 108)
    share = ledger.BLOCKS_FILLED_SHARE(B=1, h=16, L=16384, B_M=128, n_SM=108)
    assert share == pytest.approx(2048 / (19 * 108))
