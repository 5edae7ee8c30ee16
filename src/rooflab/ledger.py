"""Symbolic counts of FLOPs, bytes and launches, each written once.

Every formula is a SymPy expression that carries its units.
From it come the LaTeX of a page, the NumPy function behind a table and the JavaScript behind a slider.
A multiply-add counts as 2 FLOP; comparisons, exponentials and divisions count as 1 FLOP each.
Bytes are *compulsory* main-memory traffic: a kernel reads each input once and writes each output once.
There are no numbers of machines or models in this module.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field

import sympy
from sympy import Max, Min, ceiling
from sympy.core.singleton import S
from sympy.printing.mathml import MathMLPresentationPrinter

from .units import FLOP, UnitError, byte, check, element, launch, magnitude, second


class LedgerError(ValueError):
    """Raised when a formula is called with a missing, unknown or impossible value."""


class Var(sympy.Symbol):
    """One symbol of the book: positive, with a unit and one meaning; it prints in the order of definition."""

    def __new__(cls, name: str, unit, meaning: str):
        return super().__new__(cls, name, positive=True)

    def __init__(self, name: str, unit, meaning: str):
        self.unit, self.meaning, self.rank = sympy.sympify(unit), meaning, len(SYMBOLS)
        SYMBOLS[name] = self

    def sort_key(self, order=None):
        # Printers order factors by this key: 2MNK as the field writes it, not alphabetically.
        return self.class_key(), (1, (f"{self.rank:04d}",)), S.One.sort_key(), S.One


SYMBOLS: dict[str, Var] = {}

b = Var("b", byte / element, "bytes per element")
k = Var("k", 1, "number of operations in a chain")
M = Var("M", 1, "rows of the output matrix")
N = Var("N", 1, "columns of the output matrix")
K = Var("K", 1, "inner dimension, the length of each dot product")
n = Var("n", 1, "elements of a vector, or rows of a square matrix")
R = Var("R", 1, "rows of a matrix that is reduced row by row")
C = Var("C", 1, "columns of a matrix that is reduced row by row")
B_M = Var("B_M", 1, "rows of an output tile")
B_N = Var("B_N", 1, "columns of an output tile")
B = Var("B", 1, "batch: sequences processed together")
L = Var("L", 1, "context length in tokens")
h = Var("h", 1, "query heads")
h_kv = Var("h_kv", 1, "key-value heads")
d_h = Var("d_h", 1, "head dimension")
c = Var("c", 1, "share of the query-key pairs that is computed: 1 for full attention, 1/2 for causal")
s = Var("s", 1, "new tokens per sequence in one step: 1 in plain decoding, a whole prompt or a chunk in prefill")
d = Var("d", 1, "model width")
d_in = Var("d_in", 1, "inputs of a linear layer")
d_out = Var("d_out", 1, "outputs of a linear layer")
w = Var("w", 1, "elements of a vector: of a cache entry, or of norm weights and biases")
d_ff = Var("d_ff", 1, "width of the MLP, or of one expert")
m = Var("m", 1, "matrices of the MLP: 3 with a gate, 2 without")
n_e = Var("n_e", 1, "experts of a layer")
k_e = Var("k_e", 1, "experts that each token uses")
r_kv = Var("r_kv", 1, "rank of the latent that multi-head latent attention keeps per token")
d_r = Var("d_r", 1, "part of a key that carries the position in multi-head latent attention")
V = Var("V", 1, "vocabulary: rows of the LM head")
n_layers = Var("n_layers", 1, "layers")
n_out = Var("n_out", 1, "tokens per sequence whose logits are computed")
n_gpu = Var("n_gpu", 1, "GPUs that share each layer in tensor parallelism")
b_w = Var("b_w", byte / element, "bytes per weight")
b_kv = Var("b_kv", byte / element, "bytes per element of the cache of keys and values")
b_a = Var("b_a", byte / element, "bytes per activation")
F = Var("F", FLOP, "floating-point operations of a workload")
Q = Var("Q", byte, "bytes that a workload moves at one memory level")
I = Var("I", FLOP / byte, "intensity: operations per byte moved")  # noqa: E741 - the field's letter
P = Var("P", FLOP / second, "peak rate of a compute unit")
beta = Var("beta", byte / second, "peak bandwidth of a memory level")
n_SM = Var("n_SM", 1, "streaming multiprocessors of a GPU")
p_clk = Var("p_clk", FLOP, "operations that one unit, such as an SM, completes per clock")
f_clk = Var("f_clk", 1 / second, "clock")
P_exp = Var("P_exp", FLOP / second, "peak rate of exponentials, each counted as 1 FLOP")
P_v = Var("P_v", FLOP / second, "peak rate of the vector units")
n_launch = Var("n_launch", launch, "kernel launches")
t_launch = Var("t_launch", second / launch, "least time per kernel launch")


@dataclass(frozen=True)
class Formula:
    """A named expression with a checked unit; call it with numbers in base units (FLOP, byte, s).

    >>> gemm_flop = WORKLOADS["gemm"].flop
    >>> gemm_flop(M=1, N=4096, K=4096)
    33554432
    >>> gemm_flop.latex()
    '2 M N K'
    """

    name: str
    quantity: sympy.Expr
    unit: sympy.Expr

    def __post_init__(self):
        try:
            check(self.quantity, self.unit, {s: s.unit for s in self.quantity.free_symbols})
        except UnitError as slip:
            raise UnitError(f"{self.name}: {slip}") from None

    @functools.cached_property
    def expr(self) -> sympy.Expr:
        """The expression without its units, in `unit`."""
        return magnitude(self.quantity, self.unit)

    @functools.cached_property
    def symbols(self) -> tuple[Var, ...]:
        """The symbols it depends on, in the order of the symbol table."""
        return tuple(sorted(self.expr.free_symbols, key=lambda symbol: symbol.rank))

    @functools.cached_property
    def numpy(self):
        """The function of `symbols`, elementwise over arrays; numbers alone do not import NumPy."""
        return sympy.lambdify(self.symbols, self.expr, [_ELEMENTWISE])

    def __call__(self, **values):
        """Return the formula's value in `unit`; arrays broadcast. Raises LedgerError on a value that cannot be."""
        names = [symbol.name for symbol in self.symbols]
        if missing := [name for name in names if name not in values]:
            raise LedgerError(f"{self.name} needs {', '.join(missing)}; it depends on {', '.join(names)}")
        for name in values:
            if name not in SYMBOLS:
                raise LedgerError(f"{self.name}: unknown symbol {name!r}; it depends on {', '.join(names)}")
        return self.numpy(*(_positive(f"{self.name}: {name}", values[name]) for name in names))

    def latex(self) -> str:
        """Return the right-hand side as LaTeX."""
        return sympy.latex(self.expr)

    def js(self) -> str:
        """Return a JavaScript function of `symbols`."""
        arguments = ", ".join(symbol.name for symbol in self.symbols)
        return f"({arguments}) => {sympy.jscode(self.expr)}"

    def mathml_tokens(self) -> list[str | list[str]]:
        """Return the right-hand side as presentation MathML, cut at its symbols: text, [name, MathML], text, ...

        A page joins the tokens as they are, or puts a number in each symbol's place.
        """
        marks = {_mathml(symbol): symbol.name for symbol in self.symbols}
        # Longest first: the mark of h also occurs inside the mark of h_kv.
        pattern = "|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True))
        pieces = re.split(f"({pattern})", _mathml(self.expr)) if marks else [_mathml(self.expr)]
        return [[marks[piece], piece] if piece in marks else piece for piece in pieces if piece]


def _elementwise(plain, name: str):
    """Return `plain` for numbers and NumPy's function `name`, folded over its arguments, for arrays."""

    def function(*args):
        if all(type(each) in (int, float) for each in args):
            return plain(args) if len(args) > 1 else plain(*args)
        import numpy as np

        # lambdify's own Max stacks its arguments, which fails when they broadcast.
        return functools.reduce(getattr(np, name), args) if len(args) > 1 else getattr(np, name)(*args)

    return function


# NumPy takes a tenth of a second to import. A formula with another function needs a line here.
_ELEMENTWISE = {
    "Max": _elementwise(max, "maximum"),
    "Min": _elementwise(min, "minimum"),
    "ceiling": _elementwise(math.ceil, "ceil"),
}


def _positive(what: str, value):
    """Return `value` if it is positive and finite, an array as floats; else raise LedgerError."""
    if type(value) is int and value > 0 or type(value) is float and 0 < value < math.inf:
        return value
    import numpy as np

    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise LedgerError(f"{what} is {value!r}; it must be a number") from None
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise LedgerError(f"{what} is {value}; it must be positive and finite")
    # Python's integers are exact at any size; an array of int64 would overflow unseen.
    return numbers if numbers.ndim else value


def _mathml(expr: sympy.Expr) -> str:
    return MathMLPresentationPrinter({"mul_symbol": "dot"}).doprint(expr)


@dataclass(frozen=True)
class Workload:
    """What one piece of work demands: operations per compute unit, bytes per memory level, kernel launches.

    The first compute unit is the one whose FLOPs name the performance.
    `assumes` says in words what the counts leave out.
    `parts` splits main memory's traffic into weights, cache and activations, where the workload is part of a model.
    """

    name: str
    title: str
    work: dict[str, Formula]
    traffic: dict[str, Formula]
    launches: Formula
    assumes: str
    parts: dict[str, Formula] = field(default_factory=dict)

    @property
    def flop(self) -> Formula:
        """The FLOP count of the first compute unit."""
        return next(iter(self.work.values()))

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """Every count of this workload."""
        return (*self.work.values(), *self.traffic.values(), self.launches, *self.parts.values())

    def intensity(self, level: str = "hbm") -> Formula:
        """Return the workload's FLOP per byte of compulsory traffic at one memory level.

        >>> WORKLOADS["dot"].intensity().latex()
        '\\\\frac{1}{b}'
        """
        if level not in self.traffic:
            raise LedgerError(f"{self.name} counts no traffic at {level!r}; it has {', '.join(self.traffic)}")
        quotient = self.flop.quantity / self.traffic[level].quantity
        # A power with a symbol in its exponent would come out as huge numbers over huge numbers.
        if not any(power.exp.free_symbols for power in quotient.atoms(sympy.Pow)):
            quotient = sympy.factor(sympy.cancel(quotient))
        return Formula(f"{self.name}_intensity_{level}", quotient, FLOP / byte)

    def demand(self, **values) -> Demand:
        """Return what this workload demands for numbers in base units; a cache level is left out without its symbols.

        >>> WORKLOADS["gemv"].demand(M=4096, K=4096, b=2).flop
        33554432
        """
        given = {
            level: formula
            for level, formula in self.traffic.items()
            if level == "hbm" or all(symbol.name in values for symbol in formula.symbols)
        }
        return Demand(
            self.title,
            {unit: formula(**values) for unit, formula in self.work.items()},
            {level: formula(**values) for level, formula in given.items()},
            self.launches(**values),
        )


@dataclass(frozen=True)
class Demand:
    """The numbers of one workload: `work` (FLOP by compute unit), `traffic` (byte by memory level), `launches`."""

    title: str
    work: dict[str, float]
    traffic: dict[str, float]
    launches: float = 1

    def __post_init__(self):
        if not self.work or not self.traffic:
            raise LedgerError(f"{self.title}: give work such as {{'tensor': FLOP}} and traffic such as {{'hbm': byte}}")
        for what, value in (*self.work.items(), *self.traffic.items(), ("launches", self.launches)):
            if not (math.isfinite(value) and value >= 0):
                raise LedgerError(f"{self.title}: {what} is {value}; it must be finite and not negative")

    @property
    def flop(self) -> float:
        """The FLOPs of the first compute unit."""
        return next(iter(self.work.values()))

    def intensity_flop_per_byte(self, level: str = "hbm") -> float:
        """Return FLOP per byte moved at `level`; infinite when nothing moves."""
        if level not in self.traffic:
            raise LedgerError(f"{self.title} has no bytes at {level!r}; it has {', '.join(self.traffic)}")
        moved = self.traffic[level]
        return self.flop / moved if moved else math.inf


# The roofline model itself -------------------------------------------------------------------------------------------

INTENSITY = Formula("intensity", F / Q, FLOP / byte)
RIDGE = Formula("ridge", P / beta, FLOP / byte)
ATTAINABLE = Formula("attainable", Min(P, I * beta), FLOP / second)
COMPUTE_TIME = Formula("compute_time", F / P, second)
MEMORY_TIME = Formula("memory_time", Q / beta, second)
LAUNCH_TIME = Formula("launch_time", n_launch * t_launch, second)
TIME_BOUND = Formula("time_bound", Max(F / P, Q / beta, n_launch * t_launch), second)

ROOFLINE = {f.name: f for f in (INTENSITY, RIDGE, ATTAINABLE, COMPUTE_TIME, MEMORY_TIME, LAUNCH_TIME, TIME_BOUND)}


# Workloads -----------------------------------------------------------------------------------------------------------

WORKLOADS: dict[str, Workload] = {}


def _define(name, title, *, flop, hbm_elements, launches=1, unit="vector", assumes, **cache_elements) -> None:
    """Add a workload from counts of operations and elements; the bytes are b times the elements."""
    levels = {"hbm": hbm_elements, **cache_elements}
    WORKLOADS[name] = Workload(
        name,
        title,
        {unit: Formula(f"{name}_flop", sympy.sympify(flop) * FLOP, FLOP)},
        {level: Formula(f"{name}_bytes_{level}", b * elements * element, byte) for level, elements in levels.items()},
        Formula(f"{name}_launches", sympy.sympify(launches) * launch, launch),
        assumes,
    )


_define(
    "dot",
    "dot product",
    flop=2 * n,
    hbm_elements=2 * n,
    assumes="two vectors read; the one-element result and the tree of partial sums are neglected",
)
_define(
    "axpy",
    "axpy",
    flop=2 * n,
    hbm_elements=3 * n,
    assumes="x and y read, y written",
)
_define(
    "elementwise_unfused",
    "elementwise chain, one kernel per operation",
    flop=k * n,
    hbm_elements=2 * k * n,
    launches=k,
    assumes="one FLOP per element and operation; each kernel reads one tensor and writes one",
)
_define(
    "elementwise_fused",
    "elementwise chain, one kernel",
    flop=k * n,
    hbm_elements=2 * n,
    assumes="one FLOP per element and operation; intermediates stay in registers",
)
_define(
    "row_reduction",
    "row sum",
    flop=R * C,
    hbm_elements=R * C + R,
    assumes="one addition per element; reads the matrix, writes one element per row",
)
_define(
    "layernorm",
    "layer norm",
    flop=7 * R * C,
    hbm_elements=2 * R * C + 2 * C,
    assumes="7 FLOP per element: sum; subtract, square, sum; scale; multiply and add the weights. A row fits on chip",
)
_define(
    "softmax",
    "softmax, one kernel",
    flop=5 * R * C,
    hbm_elements=2 * R * C,
    assumes="5 FLOP per element: maximum, subtract, exponential, sum, divide. A row fits on chip",
)
_define(
    "softmax_three_pass",
    "softmax, rows re-read",
    flop=5 * R * C,
    hbm_elements=4 * R * C,
    assumes="as softmax, but a row does not fit on chip: one read for the maximum, one for the sum, one for the result",
)
_define(
    "norm_relu_add_unfused",
    "residual + relu(layer norm), three kernels",
    flop=9 * R * C,
    hbm_elements=7 * R * C + 2 * C,
    launches=3,
    assumes="layer norm, relu and addition each read their inputs and write their result; a row fits on chip",
)
_define(
    "norm_relu_add_fused",
    "residual + relu(layer norm), one kernel",
    flop=9 * R * C,
    hbm_elements=3 * R * C + 2 * C,
    assumes="x and the residual read, the result written; intermediates stay in registers",
)
_define(
    "gemv",
    "GEMV",
    flop=2 * M * K,
    hbm_elements=M * K + K + M,
    assumes="an M × K matrix times a vector; no reuse of the matrix exists",
)
_define(
    "gemm",
    "GEMM",
    flop=2 * M * N * K,
    hbm_elements=M * K + K * N + M * N,
    l2=M * K * ceiling(N / B_N) + K * N * ceiling(M / B_M) + M * N,
    unit="tensor",
    assumes="each matrix crosses main memory once; from L2, each tile of the output reads its own two panels",
)
_define(
    "attention_naive",
    "attention, three kernels",
    flop=4 * B * h * L**2 * d_h,
    hbm_elements=B * h * (4 * L * d_h + 4 * L**2),
    launches=3,
    unit="tensor",
    assumes="scores written, read by softmax, probabilities written, read by the second product; no mask",
)
_define(
    "attention_prefill",
    "fused attention, prefill",
    flop=4 * B * h * L**2 * d_h * c,
    hbm_elements=B * L * d_h * (2 * h + 2 * h_kv),
    unit="tensor",
    assumes="two matrix products; softmax neglected; Q, K, V read and O written once, scores never leave the chip",
)
_define(
    "attention_decode",
    "attention, decode",
    flop=4 * B * L * h * d_h,
    hbm_elements=B * d_h * (2 * L * h_kv + 2 * h),
    unit="tensor",
    assumes="one new token per sequence; the cache of K and V is read once; softmax neglected",
)


# One step of a model -------------------------------------------------------------------------------------------------
# B sequences bring s new tokens each. Weights, cache and activations have bytes per element of their own.


def _define_part(name, title, *, flop, weights=0, cache=0, activations=0, launches=1, unit="tensor", assumes) -> None:
    """Add a part of a model's step from counts of operations and of elements by kind."""
    kinds = {"weights": (b_w, weights), "cache": (b_kv, cache), "activations": (b_a, activations)}
    quantities = {kind: size * elements * element for kind, (size, elements) in kinds.items() if elements != 0}
    WORKLOADS[name] = Workload(
        name,
        title,
        {unit: Formula(f"{name}_flop", sympy.sympify(flop) * FLOP, FLOP)},
        {"hbm": Formula(f"{name}_bytes_hbm", sum(quantities.values()), byte)},
        Formula(f"{name}_launches", sympy.sympify(launches) * launch, launch),
        assumes,
        {kind: Formula(f"{name}_bytes_{kind}", quantity, byte) for kind, quantity in quantities.items()},
    )


# With causal attention c is 1/2 and the i-th of s new tokens sees L - s + i of the L tokens: this many pairs in all.
_PAIRS = s * (L - (1 - c) * (s - 1))

_define_part(
    "linear",
    "linear layer",
    flop=2 * B * s * d_in * d_out,
    weights=d_in * d_out,
    activations=B * s * (d_in + d_out),
    assumes="the weights are read once for all tokens of the step; inputs read, outputs written",
)
_define_part(
    "linear_per_head",
    "linear layer of its own for each head",
    flop=2 * B * s * h * d_in * d_out,
    weights=h * d_in * d_out,
    activations=B * s * h * (d_in + d_out),
    assumes="as linear, once for each head",
)
_define_part(
    "experts",
    "routed experts",
    flop=2 * B * s * k_e * m * d * d_ff,
    weights=n_e * (1 - (1 - k_e / n_e) ** (B * s)) * m * d * d_ff,
    activations=B * s * k_e * m * (d + d_ff),
    launches=m,
    assumes="each token picks its experts at random, all equally likely: the weights of those picked at least once",
)
_define_part(
    "attention",
    "attention, fused",
    flop=4 * B * h * d_h * _PAIRS,
    cache=2 * B * L * h_kv * d_h,
    activations=2 * B * s * h * d_h,
    assumes="keys and values of the L tokens read once, queries read, outputs written; softmax neglected",
)
_define_part(
    "attention_apart",
    "attention, three kernels",
    flop=4 * B * h * d_h * s * L,
    cache=2 * B * L * h_kv * d_h,
    activations=2 * B * s * h * d_h + 4 * B * h * s * L,
    launches=3,
    assumes="as fused attention, but all pairs are computed, and scores and weights are each written and read again",
)
_define_part(
    "attention_latent",
    "latent attention, fused",
    flop=2 * B * h * (2 * r_kv + d_r) * _PAIRS,
    cache=B * L * (r_kv + d_r),
    activations=B * s * h * (2 * r_kv + d_r),
    assumes="the latents are keys and values of all heads at once and are read once; softmax neglected",
)
_define_part(
    "cache_write",
    "keys and values into the cache",
    flop=0,
    cache=B * s * w,
    unit="vector",
    assumes="new entries written; they are still at hand from their projection",
)
_define_part(
    "embedding",
    "embedding lookup",
    flop=0,
    weights=B * s * d,
    activations=B * s * d,
    unit="vector",
    assumes="one row of the table read for each token, and written as the first activation",
)
_define_part(
    "norm",
    "norm",
    flop=4 * B * s * d,
    activations=2 * B * s * d,
    unit="vector",
    assumes="4 FLOP per element, as a root-mean-square norm: square, sum, scale, multiply by the weight",
)
_define_part(
    "vectors",
    "weights of norms, biases",
    flop=0,
    weights=w,
    launches=0,
    unit="vector",
    assumes="each read once, by the kernel that uses it",
)
_define_part(
    "mlp_activation",
    "activation of the MLP",
    flop=B * s * d_ff,
    activations=B * s * d_ff * m,
    unit="vector",
    assumes="1 FLOP per element; reads gate and up, or up alone, and writes one",
)


def _define_sum(name, title, terms, assumes) -> None:
    """Add a workload that is a sum of parts: (how many, workload, what takes the place of its symbols)."""

    def total(formula_of):
        found = 0
        for times, part, values in terms:
            if (formula := formula_of(WORKLOADS[part])) is not None:
                found += times * formula.quantity.subs(values, simultaneous=True)
        return found

    kinds = {kind: total(lambda part, kind=kind: part.parts.get(kind)) for kind in ("weights", "cache", "activations")}
    WORKLOADS[name] = Workload(
        name,
        title,
        {"tensor": Formula(f"{name}_flop", total(lambda part: part.work.get("tensor")), FLOP)},
        {"hbm": Formula(f"{name}_bytes_hbm", sum(kinds.values()), byte)},
        Formula(f"{name}_launches", total(lambda part: part.launches), launch),
        assumes,
        {kind: Formula(f"{name}_bytes_{kind}", quantity, byte) for kind, quantity in kinds.items()},
    )


_define_sum(
    "step",
    "one step of a dense model with a gated MLP",
    [
        (1, "embedding", {}),
        (2 * n_layers + 1, "norm", {}),
        (1, "vectors", {w: (2 * n_layers + 1) * d}),
        (n_layers, "linear", {d_in: d, d_out: h * d_h}),
        (2 * n_layers, "linear", {d_in: d, d_out: h_kv * d_h}),
        (n_layers, "cache_write", {w: 2 * h_kv * d_h}),
        (n_layers, "attention", {}),
        (n_layers, "linear", {d_in: h * d_h, d_out: d}),
        (2 * n_layers, "linear", {d_in: d, d_out: d_ff}),
        (n_layers, "mlp_activation", {m: 3}),
        (n_layers, "linear", {d_in: d_ff, d_out: d}),
        (1, "linear", {s: n_out, d_in: d, d_out: V}),
    ],
    assumes="every operation of the step on its own; FLOPs of the matrix products only",
)

# Matrix units and tiles -----------------------------------------------------------------------------------------------

_TILES = ceiling(M / B_M) * ceiling(N / B_N)
_define(
    "gemm_waves",
    "GEMM in whole waves of whole tiles",
    flop=2 * B_M * B_N * K * n_SM * ceiling(_TILES / n_SM),
    hbm_elements=M * K + K * N + M * N,
    unit="tensor",
    assumes="each SM computes one whole tile per wave; the last wave costs as much as a full one",
)

# A tile of attention: the scores of B_M queries and B_N keys of one head, and what they add to the output.
# For each score the vector units take a maximum, scale and subtract, add up, and convert, two numbers at once; for each
# element of the output, one product. Each of these takes the slot of a multiply-add, and so counts 2 FLOP.
_TILE_MMA, _TILE_EXP = 4 * B_M * B_N * d_h * FLOP, B_M * B_N * FLOP
_TILE_VECTOR = 2 * B_M * (sympy.Rational(7, 2) * B_N + d_h) * FLOP
_TILE_TIMES = (_TILE_MMA / P, _TILE_EXP / P_exp, sympy.expand(_TILE_VECTOR) / P_v)
WORKLOADS["attention_tile"] = Workload(
    "attention_tile",
    "one tile of attention",
    {
        "tensor": Formula("attention_tile_flop", _TILE_MMA, FLOP),
        "exp": Formula("attention_tile_exp", _TILE_EXP, FLOP),
        "vector": Formula("attention_tile_vector", sympy.expand(_TILE_VECTOR), FLOP),
    },
    {
        "hbm": Formula("attention_tile_bytes_hbm", 4 * b * d_h * B_M * B_N / L * element, byte),
        "l2": Formula("attention_tile_bytes_l2", 2 * b * d_h * B_N * (1 + B_M / L) * element, byte),
    },
    Formula("attention_tile_launches", B_M * B_N / L**2 * launch, launch),
    "two products; one exponential for each score; maximum, scale and subtract, sum and half a conversion for each "
    "score and one product for each element of the output, each as the multiply-add whose slot it takes; the tile's "
    "share of a head's Q, K, V and O from main memory, and from L2 its K and V and its share of Q and O",
)

ALL_REDUCE_BYTES = Formula("all_reduce_bytes", 2 * B * s * d * (n_gpu - 1) / n_gpu * b_a * element, byte)
LINEAR_RIDGE_TOKENS = Formula("linear_ridge_tokens", P / beta * b_w * element / (2 * FLOP), sympy.Integer(1))
UNIT_PEAK = Formula("unit_peak", n_SM * p_clk * f_clk, FLOP / second)
# Attention multiplies 4 d_h FLOP and takes one exponential for each score.
EXP_OVER_MMA = Formula("exp_over_mma", P / (4 * d_h * P_exp), sympy.Integer(1))
# How long a tile takes: each unit after the other, or all at once; and what share of the matrix peak that leaves.
TILE_SERIAL_TIME = Formula("tile_serial_time", sum(_TILE_TIMES), second)
TILE_OVERLAP_TIME = Formula("tile_overlap_time", Max(*_TILE_TIMES), second)
_OVER_MMA = [sympy.cancel(time / _TILE_TIMES[0]) for time in _TILE_TIMES]
TILE_SERIAL_SHARE = Formula("tile_serial_share", 1 / sum(_OVER_MMA), sympy.Integer(1))
TILE_OVERLAP_SHARE = Formula("tile_overlap_share", Min(*(1 / each for each in _OVER_MMA)), sympy.Integer(1))
TILES = Formula("tiles", _TILES, sympy.Integer(1))
WAVES = Formula("waves", ceiling(_TILES / n_SM), sympy.Integer(1))
FILLED_SHARE = Formula("filled_share", M * N / (B_M * B_N * n_SM * ceiling(_TILES / n_SM)), sympy.Integer(1))
# Attention with one program per SM at a time: a program for each block of B_M queries of each head, or for each head.
_PROGRAMS = {M: L, ceiling(N / B_N): B * h, N: B * h, B_N: 1}
BLOCKS_FILLED_SHARE = Formula("blocks_filled_share", FILLED_SHARE.quantity.subs(_PROGRAMS), sympy.Integer(1))
HEADS_FILLED_SHARE = Formula("heads_filled_share", BLOCKS_FILLED_SHARE.quantity.subs(B_M, L), sympy.Integer(1))
# A kernel that moves this many bytes takes as long in memory as its launch.
BREAK_EVEN_BYTES = Formula("break_even_bytes", beta * t_launch, byte / launch)

_OTHERS = (ALL_REDUCE_BYTES, LINEAR_RIDGE_TOKENS, UNIT_PEAK, EXP_OVER_MMA, TILES, WAVES, FILLED_SHARE, BREAK_EVEN_BYTES)
_OTHERS += (TILE_SERIAL_TIME, TILE_OVERLAP_TIME, TILE_SERIAL_SHARE, TILE_OVERLAP_SHARE)
_OTHERS += (BLOCKS_FILLED_SHARE, HEADS_FILLED_SHARE)
OTHERS = {f.name: f for f in _OTHERS}
