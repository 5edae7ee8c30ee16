"""Exercise 5: FP8 attention and FlashAttention: what each saves, how the two stack, and what the error is.

Right answers come from `rooflab.numerics` and from the ledger.
Each known wrong formula stands beside the reason that a reader gets for it; `g` holds the arguments of the question.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from .. import numerics
from ..ledger import COMPUTE_TIME, EXP_OVER_MMA, MEMORY_TIME, WORKLOADS
from ..lesson import ArrayQuestion, Judged, Question, TrueFalse
from ..numerics import E4M3, E5M2

FP8 = ("FP8 baseline", "FP8 FlashAttention-3", "FP8 without block scales", "FP8 without rotation")


def e4m3(x):
    """Return `x` rounded to E4M3, as float32; what lies beyond 448 becomes 448, as in a GPU's conversion."""
    import torch

    clipped = np.clip(np.asarray(x, dtype=np.float32), -E4M3.largest, E4M3.largest)
    return torch.from_numpy(np.ascontiguousarray(clipped)).to(torch.float8_e4m3fn).float().numpy()


def hadamard(n):
    """Return an n x n matrix of +1 and -1 whose rows are orthogonal; n is a power of two."""
    return np.round(numerics.hadamard(n).numpy() * math.sqrt(n))


@functools.cache
def attention_errors(outlier_rate):
    """Return the RMSE of attention by scheme, emulated on the CPU: 2048 keys, 2 heads of 128, 256 queries each."""
    schemes = ("FP16 FlashAttention", *FP8)
    return numerics.attention_rmse(schemes, L=2048, heads=2, queries=256, outlier_rate=outlier_rate)


@functools.cache
def rounding_errors(outlier_rate):
    """Return the RMSE of attention by what of Q and K is rounded to E4M3; outliers are beyond 4, P and O in FP16."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rounded = {
        "one scale per tensor": lambda x: numerics.dequantize(*numerics.quantize(x, "tensor")),
        "one scale per row": lambda x: numerics.dequantize(*numerics.quantize(x, "row")),
        "no scale": lambda x: x.to(torch.float8_e4m3fn).float(),
    }
    whole = rounded["one scale per tensor"]
    rounded |= {
        "only the outliers": lambda x: torch.where(x.abs() > 4, whole(x), x),
        "all but the outliers": lambda x: torch.where(x.abs() > 4, x, whole(x)),
        "rotated, one scale per tensor": lambda x: whole(numerics.rotate(x)),
    }
    squares = dict.fromkeys(rounded, 0.0)
    heads = 4
    for _ in range(heads):
        q, k, v = (
            numerics.with_outliers(rows, 128, outlier_rate=outlier_rate, generator=generator)
            for rows in (128, 2048, 2048)
        )
        exact = (q.double() @ k.double().T / math.sqrt(128)).softmax(-1) @ v.double()
        for name, of in rounded.items():
            squares[name] += (numerics.flash_fp16(of(q), of(k), v) - exact).square().mean().item() / heads
    return {name: math.sqrt(square) for name, square in squares.items()}


def _generator(pick) -> np.random.Generator:
    return np.random.default_rng(pick(range(10**6)))


# (a) bits ------------------------------------------------------------------------------------------------------------

_BY_EXPONENT_BITS = {4: E4M3, 5: E5M2}


@dataclass(frozen=True)
class _SignedQuestion(Question):
    """As `Question`, for numbers with a sign, and for answers that a mistake makes infinite."""

    def _read(self, value, given):
        if isinstance(value, float) and not math.isfinite(value):
            return value
        return super()._read(value, given)

    def _off(self, returned, given, got):
        if not math.isfinite(got):
            return "the code stands for a finite number"
        if got * self.right(**given) < 0:
            return "the sign is wrong"
        return super()._off(returned, given, got)


def _decode(sign, exponent, mantissa, exponent_bits):
    return _BY_EXPONENT_BITS[exponent_bits].decode(sign << 7 | exponent << 7 - exponent_bits | mantissa)


def _value(sign, exponent, mantissa, exponent_bits, **changed):
    """Return the value of a code; `changed` replaces a step by a wrong one."""
    bias = changed.get("bias", 2 ** (exponent_bits - 1) - 1)
    fraction = mantissa / 2 ** changed.get("mantissa_bits", 7 - exponent_bits)
    if exponent == 0:
        value = (changed.get("subnormal_one", 0) + fraction) * 2.0 ** (changed.get("subnormal", 1) - bias)
    elif exponent == 15 and exponent_bits == 4 and changed.get("infinity"):
        value = math.inf
    else:
        value = (changed.get("one", 1) + fraction) * 2.0 ** (exponent - bias)
    return -value if sign and changed.get("signed", True) else value


def _draw_code(pick) -> dict:
    exponent_bits = pick((4, 4, 5))
    highest = {4: 15, 5: 30}[exponent_bits]
    exponent = pick((0, 0, 1, 7, highest, highest, *range(highest)))
    mantissa = pick(range(7 if (exponent_bits, exponent) == (4, 15) else 2 ** (7 - exponent_bits)))
    return {"sign": pick((0, 1)), "exponent": exponent, "mantissa": mantissa, "exponent_bits": exponent_bits}


value_of_code = _SignedQuestion(
    "value of a code",
    "",
    {"sign": 0, "exponent": 9, "mantissa": 5, "exponent_bits": 4},
    _draw_code,
    _decode,
    {
        "the bias is 2**(exponent_bits - 1) - 1: 7 in E4M3, not 8 as in the variant fnuz, and 15 in E5M2": (
            lambda **g: _value(**g, bias=2 ** (g["exponent_bits"] - 1))
        ),
        "the bias is missing: a stored exponent of 7 is 2**0 in E4M3": lambda **g: _value(**g, bias=0),
        "E5M2 has five bits of exponent, so its bias is 15, not 7": lambda **g: _value(**g, bias=7),
        "E5M2 has two bits of mantissa, so its steps are quarters, not eighths": lambda **g: _value(
            **g, mantissa_bits=3
        ),
        "that is E4M3 for every code; E5M2 has another bias and another mantissa": (
            lambda **g: _value(**g, bias=7, mantissa_bits=3)
        ),
        "the implicit 1 in front of the mantissa is missing": lambda **g: _value(**g, one=0),
        "a stored exponent of 0 has no implicit 1, and its power is 1 - bias: the number is subnormal": (
            lambda **g: _value(**g, subnormal_one=1, subnormal=0)
        ),
        "a stored exponent of 0 has no implicit 1: the number is subnormal": lambda **g: _value(**g, subnormal_one=1),
        "subnormal numbers have the power of the smallest normal ones, 1 - bias, not -bias": (
            lambda **g: _value(**g, subnormal=0)
        ),
        "E4M3 has no infinity: its highest exponent holds numbers too, up to 448": lambda **g: _value(
            **g, infinity=True
        ),
        "the sign is missing": lambda **g: _value(**g, signed=False),
    },
)


def _largest(exponent_bits, has_infinity):
    return numerics.Format("", exponent_bits, 7 - exponent_bits, 2 ** (exponent_bits - 1) - 1, has_infinity, "").largest


def _power(exponent_bits, has_infinity):
    """Return the largest power of two of the format."""
    return 2.0 ** (2**exponent_bits - 1 - has_infinity - (2 ** (exponent_bits - 1) - 1))


largest_number = Question(
    "largest number",
    "",
    {"exponent_bits": 4, "has_infinity": False},
    lambda pick: {"exponent_bits": pick((2, 3, 4, 5)), "has_infinity": pick((False, True))},
    _largest,
    {
        "without infinity the highest exponent holds numbers; 240 is the largest of an E4M3 that has infinity, or of "
        "the variant fnuz, whose bias is 8": lambda **g: _largest(**g | {"has_infinity": True}),
        "without infinity the code with all bits set is still NaN: the largest number is the one below it": (
            lambda **g: _power(**g) * (2 - 2.0 ** (g["exponent_bits"] - 7))
        ),
        "with infinity the whole highest exponent goes to infinity and NaN": (
            lambda **g: _largest(**g | {"has_infinity": False})
        ),
        "the bias is 2**(exponent_bits - 1) - 1, so 7 in E4M3": lambda **g: _largest(**g) / 2,
        "the implicit 1 in front of the mantissa is missing": lambda **g: _largest(**g) - _power(**g),
        "that is the power of two above it, for which there is no code": lambda **g: 2 * _power(**g),
        "that is the power of two below it: the mantissa is missing": lambda **g: _power(**g),
    },
)


def _spacing(value, exponent_bits):
    return _BY_EXPONENT_BITS[exponent_bits].spacing(value)


def _spacing_wrong(value, exponent_bits, mantissa_bits=None):
    """Return the spacing without an end to the normal range."""
    return 2.0 ** (math.floor(math.log2(value)) - (mantissa_bits or 7 - exponent_bits))


spacing = Question(
    "spacing",
    "",
    {"value": 300.0, "exponent_bits": 4},
    lambda pick: {
        "value": pick((1.1, 1.3, 1.7)) * 2.0 ** pick((-15, -12, -8, *range(-6, 9))),
        "exponent_bits": pick((4, 4, 5)),
    },
    _spacing,
    {
        "below the smallest normal number the spacing shrinks no more: subnormal numbers are all equally far apart": (
            lambda **g: _spacing_wrong(**g)
        ),
        "that is the spacing from 1 to 2; it doubles with each power of two": (
            lambda value, exponent_bits: 2.0 ** (exponent_bits - 7)
        ),
        "that is the largest rounding error, half of the spacing": lambda **g: _spacing(**g) / 2,
        "between two powers of two the spacing is constant: take the power of two below the value": (
            lambda value, exponent_bits: value * 2.0 ** (exponent_bits - 7)
        ),
        "the mantissa has 7 - exponent_bits bits; you used the number of exponent bits": (
            lambda **g: _spacing_wrong(**g, mantissa_bits=g["exponent_bits"])
        ),
        "E5M2 has two bits of mantissa and other subnormals; that is E4M3 for every format": (
            lambda **g: _spacing(**g | {"exponent_bits": 4})
        ),
    },
)


# (b) scales ----------------------------------------------------------------------------------------------------------


def _through_fp8(x, rows_per_scale):
    """Return `x` quantised and dequantised by the package."""
    import torch

    block = (rows_per_scale, x.shape[1])
    codes, scales = numerics.quantize(torch.from_numpy(x), "block", block=block)
    return numerics.dequantize(codes, scales, block=block).numpy()


def _round_trip(x, rows_per_scale, largest=448, magnitude=np.abs, turned=False, back=True):
    """Return the same from scratch; the other arguments replace a step by a wrong one."""
    groups = x.reshape(-1, rows_per_scale * x.shape[1])
    scale = np.repeat(magnitude(groups).max(axis=1) / largest, rows_per_scale)[:, None].astype(np.float32)
    if turned:
        return e4m3(x * scale) / scale
    return e4m3(x / scale) * (scale if back else 1)


def _draw_matrix(pick) -> dict:
    rng, rows = _generator(pick), pick((4, 8))
    size = 10.0 ** rng.uniform(-1, 1, rows)
    x = rng.standard_normal((rows, 16)) * size[:, None]
    # The largest magnitude of each row is below zero.
    x[np.arange(rows), rng.integers(0, 16, rows)] = -size * rng.uniform(8, 40, rows)
    return {"x": x.astype(np.float32), "rows_per_scale": pick((1, 2, 4))}


round_trip = ArrayQuestion(
    "round trip",
    "",
    {"x": np.float32([[1, -3, 0.1], [-100, 50, 0.3]]), "rows_per_scale": 1},
    _draw_matrix,
    _through_fp8,
    {
        "you did not round to E4M3": lambda x, rows_per_scale: x,
        "there is no scale: the largest magnitude of each group must land on 448": lambda x, rows_per_scale: e4m3(x),
        "multiply by the scale again after rounding": lambda **g: _round_trip(**g, back=False),
        "divide by the scale before rounding and multiply after; you did it the other way round": (
            lambda **g: _round_trip(**g, turned=True)
        ),
        "take absolute values before the maximum: the largest magnitude may be below zero": (
            lambda **g: _round_trip(**g, magnitude=np.asarray)
        ),
        "E4M3 reaches 448; 240 is the largest number of another variant": lambda **g: _round_trip(**g, largest=240),
        "E4M3 ends at 448; 57344 is the largest number of E5M2": lambda **g: _round_trip(**g, largest=57344),
        "127 is the largest number of INT8; that of E4M3 is 448": lambda **g: _round_trip(**g, largest=127),
        "the largest magnitude must land on 448, not on 1: small numbers would become subnormal": (
            lambda **g: _round_trip(**g, largest=1)
        ),
        "that is one scale for the whole matrix; each group of rows_per_scale rows has its own": (
            lambda x, rows_per_scale: _round_trip(x, len(x))
        ),
        "that is one scale per row; rows_per_scale rows share one": lambda x, rows_per_scale: _round_trip(x, 1),
        "that is one scale per column; the groups are made of rows": (
            lambda x, rows_per_scale: _round_trip(np.ascontiguousarray(x.T), 1).T
        ),
    },
)


def _coarser(value, largest, outlier):
    before, after = (E4M3.spacing(value * E4M3.largest / top) * top for top in (largest, outlier))
    return after / before


def _draw_outlier(pick) -> dict:
    largest = pick((1.0, 4.0, 6.0))
    # Powers of two, so that normal numbers keep their spacing to the last bit.
    outlier = largest * 2.0 ** pick((1, 3, 4, 7, 9, 13, 15, 17))
    return {"value": largest * pick((0.9, 0.3, 0.11, 0.013)), "largest": largest, "outlier": outlier}


coarser = Question(
    "spacing with an outlier over spacing without",
    "x",
    {"value": 0.9, "largest": 4.0, "outlier": 64.0},
    _draw_outlier,
    _coarser,
    {
        "that is a uniform grid, as of INT8; a floating-point format has finer steps for smaller numbers": (
            lambda value, largest, outlier: outlier / largest
        ),
        "that holds for normal numbers; a value that the larger scale makes subnormal does lose bits": (
            lambda value, largest, outlier: 1.0
        ),
        "those are the spacings of the codes; multiply each by its scale": (
            lambda value, largest, outlier: _coarser(value, largest, outlier) * largest / outlier
        ),
        "you have the ratio the wrong way round": lambda **g: 1 / _coarser(**g),
    },
)


# (c) rotation --------------------------------------------------------------------------------------------------------


def _lengths(x, axis):
    return np.sqrt(np.square(x).sum(axis=axis))


def _is_constant(ratio):
    return bool(np.ptp(ratio) < 1e-6 * np.abs(ratio).max())


def _pair_problems(answer, L, n, seed):
    """Yield what is wrong with the rotation of random Q and K of (L, n)."""
    rng = np.random.default_rng(seed)
    Q, K = rng.standard_normal((2, L, n))
    Q[0], Q[1], outlier = 0.0, 1.0, 50.0  # a row with nothing but an outlier, and a constant row
    Q[0, seed % n] = outlier
    returned = answer(Q=Q.copy(), K=K.copy(), rng=np.random.default_rng(seed))
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        yield f"return two arrays, Q and K, and not {type(returned).__name__}"
        return
    turned = [np.asarray(each, dtype=float) for each in returned]
    if any(each.shape != (L, n) for each in turned):
        shapes = " and ".join(str(each.shape) for each in turned)
        yield f"both results must have the shape of Q and K, ({L}, {n}); they have {shapes}"
        return
    if np.allclose(turned[0], Q) or np.allclose(turned[1], K):
        kept = [name for name, x, y in zip("QK", turned, (Q, K), strict=True) if np.allclose(x, y)]
        what = f"{kept[0]} is as before" if len(kept) == 1 else "Q and K are as before"
        yield f"{what}; rotate both, by one matrix: Q K^T stays, and outliers are spread"
        return
    for name, x, y in zip("QK", turned, (Q, K), strict=True):
        rows = _lengths(x, 1) / _lengths(y, 1)
        if not _is_constant(rows):
            if _is_constant(_lengths(x, 0) / _lengths(y, 0)):
                yield f"{name} is rotated along the sequence, which mixes tokens; rotate each row, along head_dim"
            else:
                yield f"the rows of {name} change their lengths: signs are +1 or -1, and H / sqrt(n) is orthogonal"
        elif math.isclose(rows[0], n**0.5, rel_tol=1e-6):
            yield "1 / sqrt(n) is missing: every row has become sqrt(n) times as long, and Q K^T n times as large"
        elif math.isclose(rows[0], n**-0.5, rel_tol=1e-6):
            yield "you divided by n; H / sqrt(n) is the orthogonal matrix"
        elif not math.isclose(rows[0], 1, rel_tol=1e-6):
            yield f"the rows of {name} become {rows[0]:.3g} times as long; a rotation keeps their lengths"
    if not np.allclose(turned[0] @ turned[1].T, Q @ K.T):
        yield "Q K^T changes: Q and K are turned by different matrices; draw the signs once, for both"
    if np.abs(turned[0][0]).max() > 1.01 * outlier / n**0.5:
        yield "the outlier is not spread evenly: signs or a permutation alone leave it whole; multiply by H"
    if np.abs(turned[0][1]).max() > 0.99 * n**0.5:
        yield "a constant row has become an outlier of sqrt(n): random signs must come before H"
    again = answer(Q=Q.copy(), K=K.copy(), rng=np.random.default_rng(seed + 1))
    if np.allclose(again[0], turned[0]):
        yield "another rng gives the same result: draw the signs from rng"


def _rotation_problems(answer):
    # L = n first: a rotation along the sequence then has a result.
    for seed, (L, n) in enumerate(((64, 64), (32, 128), (128, 16))):
        yield from _pair_problems(answer, L, n, seed)


rotation = Judged("rotation", ("Q", "K", "rng"), _rotation_problems)


def _score_error(q, k, relative_error):
    return relative_error * float(np.sqrt(np.square(q * k).sum()))


def _draw_vectors(pick) -> dict:
    rng, n = _generator(pick), pick((16, 64, 128))
    q, k = rng.standard_normal((2, n))
    q[0] *= pick((1, 10, 30))
    k[pick((0, 1))] *= pick((1, 10, 30))
    return {"q": q, "k": k, "relative_error": pick((2**-4, 2**-5, 0.01))}


score_error = Question(
    "error of a score",
    "",
    {"q": np.array([1.0, 2.0, -1.0, 10.0]), "k": np.array([0.5, 1.0, 1.0, 20.0]), "relative_error": 2**-5},
    _draw_vectors,
    _score_error,
    {
        "the errors are independent, so their squares add up, not their sizes: that is the worst case": (
            lambda q, k, relative_error: relative_error * float(np.abs(q * k).sum())
        ),
        "the errors have signs of their own: they do not scale the whole sum by one factor": (
            lambda q, k, relative_error: relative_error * abs(float(q @ k))
        ),
        "the error of k[i] meets q[i] only; the product of the two lengths is too much": (
            lambda q, k, relative_error: relative_error * float(np.linalg.norm(q) * np.linalg.norm(k))
        ),
        "that is what a rotation leaves on average; here q and k are as they are": (
            lambda q, k, relative_error: (
                relative_error * float(np.linalg.norm(q) * np.linalg.norm(k)) / math.sqrt(len(q))
            )
        ),
        "that is the mean error of one term; the terms are added": (
            lambda **g: _score_error(**g) / math.sqrt(len(g["q"]))
        ),
        "each error is a share of k[i]; you left out k": (
            lambda q, k, relative_error: relative_error * float(np.linalg.norm(q))
        ),
        "that is the mean square; take its root": lambda **g: _score_error(**g) ** 2,
    },
)


# (d) errors of attention ---------------------------------------------------------------------------------------------

_PAPER = {name: numerics.ATTENTION_SCHEMES[name].paper_rmse for name in FP8}


def _gains(errors):
    full = errors["FP8 FlashAttention-3"]
    return errors["FP8 without rotation"] / full, errors["FP8 without block scales"] / full


def _from_baseline(errors):
    """Return what is gained when a step is the only one."""
    base = errors["FP8 baseline"]
    return base / errors["FP8 without block scales"], base / errors["FP8 without rotation"]


def _draw_errors(pick) -> dict:
    return {"errors": {name: error * pick((0.3, 0.6, 0.9, 1.3, 1.9, 2.7)) for name, error in _PAPER.items()}}


gains = ArrayQuestion(
    "gains of rotation and of block scales",
    "",
    {"errors": _PAPER},
    _draw_errors,
    _gains,
    {
        "rotation first, then block scales; and 'without rotation' still has the block scales": (
            lambda errors: _gains(errors)[::-1]
        ),
        "you divided the error of the full scheme by the other; a gain is the error without the step over that with "
        "it": lambda errors: tuple(1 / gain for gain in _gains(errors)),
        "take one step away from the full scheme; you compared the baseline, which also keeps P in FP16, with one "
        "step": _from_baseline,
        "'without rotation' has the block scales; divide it by the full scheme, not the baseline by it": (
            lambda errors: _from_baseline(errors)[::-1]
        ),
        "these are root mean squares already; do not square them": (
            lambda errors: tuple(gain**2 for gain in _gains(errors))
        ),
        "a gain is a ratio, not a difference": (
            lambda errors: tuple(errors["FP8 FlashAttention-3"] * (gain - 1) for gain in _gains(errors))
        ),
    },
)


# (e) bytes and bounds ------------------------------------------------------------------------------------------------

_PEAKS = (312e12, 989.4e12, 1978.9e12, 2250e12, 4500e12)
_BANDWIDTHS = (0.9e12, 2.039e12, 3.35e12, 4.8e12, 7.7e12)


def _bytes(L, heads, head_dim, bits, score_bits, fused, **changed):
    """Return the ledger's bytes; `changed` replaces a count by a wrong one."""
    per_byte = changed.get("per_byte", 8)
    sizes = {"B": 1, "h": heads, "L": L, "d_h": head_dim}
    around, apart = (WORKLOADS[f"attention_{how}"].traffic["hbm"] for how in ("prefill", "naive"))
    moved = around(**sizes, h_kv=heads, b=bits / per_byte) * changed.get("around", 1)
    if fused and not changed.get("scores_when_fused"):
        return moved
    score_bytes = score_bits / per_byte
    scores = apart(**sizes, b=score_bytes) - around(**sizes, h_kv=heads, b=score_bytes)
    return moved + scores * changed.get("passes", 4) / 4


def _draw_prefill(pick) -> dict:
    bits, fused = pick(((16, False), (16, True), (8, False), (8, True), (8, True)))
    return {
        "L": pick((1024, 4096, 8192, 32768)),
        "heads": pick((8, 32, 64)),
        "head_dim": pick((64, 128, 256)),
        "bits": bits,
        "score_bits": pick((16, 32)),
        "fused": fused,
    }


_PREFILL = {"L": 4096, "heads": 32, "head_dim": 128, "bits": 16, "score_bits": 16, "fused": False}

attention_bytes = Question(
    "bytes of attention",
    "byte",
    _PREFILL,
    _draw_prefill,
    _bytes,
    {
        "a byte has 8 bits: the widths are given in bits": lambda **g: _bytes(**g, per_byte=1),
        "you counted elements; multiply by bits / 8": lambda **g: _bytes(**g | {"bits": 8, "score_bits": 8}),
        "a fused kernel keeps scores and weights on the chip": lambda **g: _bytes(**g, scores_when_fused=True),
        "scores and weights are each written and read again: four passes; you counted two": (
            lambda **g: _bytes(**g, passes=2)
        ),
        "both scores and weights pass through memory, twice each; you counted one pass": (
            lambda **g: _bytes(**g, passes=1)
        ),
        "the weights P are written and read, as the scores are: four passes; you counted three": (
            lambda **g: _bytes(**g, passes=3)
        ),
        "the L x L passes are missing from the three kernels": lambda **g: _bytes(**g, passes=0),
        "scores and weights have score_bits; you used bits for all": (
            lambda **g: _bytes(**g | {"score_bits": g["bits"]})
        ),
        "Q, K, V and O have bits; you used score_bits for all": lambda **g: _bytes(**g | {"bits": g["score_bits"]}),
        "O is written, and it is as large as Q": lambda **g: _bytes(**g, around=3 / 4),
        "that is one head; there are `heads` of them": lambda **g: _bytes(**g | {"heads": 1}),
    },
)


def _bound_s(peak_flop_per_s, bytes_per_s, total=max, flop_factor=1.0, **g):
    sizes = {"B": 1, "h": g["heads"], "L": g["L"], "d_h": g["head_dim"], "c": 1}
    flop = WORKLOADS["attention_prefill"].flop(**sizes) * flop_factor
    return total((COMPUTE_TIME(F=flop, P=peak_flop_per_s), MEMORY_TIME(Q=_bytes(**g), beta=bytes_per_s)))


def _draw_bound(pick) -> dict:
    return {**_draw_prefill(pick), "peak_flop_per_s": pick(_PEAKS), "bytes_per_s": pick(_BANDWIDTHS)}


time_bound = Question(
    "time bound",
    "s",
    {**_PREFILL, "fused": True, "peak_flop_per_s": 989.4e12, "bytes_per_s": 3.35e12},
    _draw_bound,
    _bound_s,
    {
        "FP8 does the same operations, not half of them, and the peak is given for the format already": (
            lambda **g: _bound_s(**g, flop_factor=g["bits"] / 16)
        ),
        "compute and traffic overlap at best: take the larger time, not the sum": lambda **g: _bound_s(**g, total=sum),
        "both have to be over: take the larger time, not the smaller": lambda **g: _bound_s(**g, total=min),
        "the FLOP are missing: a fused kernel is bound by them": lambda **g: _bound_s(**g, total=lambda t: t[1]),
        "the bytes are missing: the three kernels are bound by them": lambda **g: _bound_s(**g, total=lambda t: t[0]),
        "fusing leaves out passes, not products: the FLOP are the same": (
            lambda **g: _bound_s(**g, flop_factor=0.5 if g["fused"] else 1.0)
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP, and there are two products": (
            lambda **g: _bound_s(**g, flop_factor=0.5)
        ),
        "a fused kernel keeps scores and weights on the chip": lambda **g: _bound_s(**g | {"fused": False}),
    },
)


def _share(head_dim, mma_flop_per_clock, exp_per_clock):
    """Return exponential time over matrix time in 16 bits."""
    return EXP_OVER_MMA(P=mma_flop_per_clock, d_h=head_dim, P_exp=exp_per_clock)


def _range(x):
    return (1 + x) / (0.5 + x), max(1, x) / max(0.5, x)


fp8_gain = ArrayQuestion(
    "gain of FP8, without overlap and with",
    "",
    {"head_dim": 128, "mma_flop_per_clock": 4096, "exp_per_clock": 16},
    lambda pick: {
        "head_dim": pick((64, 128, 256)),
        "mma_flop_per_clock": pick((1024, 2048, 4096, 8192)),
        "exp_per_clock": pick((4, 16, 32)),
    },
    lambda **g: _range(_share(**g)),
    {
        "the exponentials do not get faster with FP8: 2x is the gain of the products alone": lambda **g: (2.0, 2.0),
        "with overlap the longer of the two counts, and that may be the exponentials": (
            lambda **g: (_range(_share(**g))[0], 2.0)
        ),
        "first without overlap, then with it": lambda **g: _range(_share(**g))[::-1],
        "each score takes 4 head_dim FLOP: two products, and a multiply-add is 2 FLOP": (
            lambda **g: _range(2 * _share(**g))
        ),
        "that is exponential time over matrix time in FP8, used as if it were that in 16 bits": (
            lambda **g: tuple((1 + x) / (0.5 + x) for x in [2 * _share(**g)]) + (_range(_share(**g))[1],)
        ),
        "you have exponential time over matrix time the wrong way round": lambda **g: _range(1 / _share(**g)),
        "that is the time after over the time before; a gain is the inverse": (
            lambda **g: tuple(1 / gain for gain in _range(_share(**g)))
        ),
        "the head dimension is missing: it sets the matrix time per score": (
            lambda **g: _range(_share(**g | {"head_dim": 1}))
        ),
    },
)


# (f) verdict ---------------------------------------------------------------------------------------------------------

verdict = TrueFalse(
    "verdict",
    {
        "a": (
            "FlashAttention is an approximation of attention.",
            False,
            "it leaves nothing out and only changes the order of the sums; rounding is all that differs",
        ),
        "b": (
            "FP8 attention is exact, because its products accumulate in FP32.",
            False,
            "its inputs are rounded to three bits of mantissa before they are multiplied",
        ),
        "c": (
            "FlashAttention and FP8 save the same bytes.",
            False,
            "fusing leaves out the passes over L x L numbers, and FP8 halves the bytes of Q, K, V and O, which remain",
        ),
        "d": (
            "FP8 halves the FLOP of attention.",
            False,
            "it does as many operations, at twice the peak",
        ),
        "e": (
            "Scales per block are what makes the FP8 of FlashAttention-3 accurate.",
            False,
            "without them the paper's error is 9.3e-3 in place of 9.1e-3; without the rotation it is 2.4e-2",
        ),
        "f": (
            "Rotating Q and K by one orthogonal matrix leaves the scores as they are, up to rounding.",
            True,
            "(Q R)(K R)^T = Q R R^T K^T, and R R^T is the identity",
        ),
        "g": (
            "FP8 attention halves the bytes that decode reads only if the cache is stored in FP8.",
            True,
            "decode reads the cache; one in bf16 takes two bytes per number, whatever type the products have",
        ),
        "h": (
            "FP8 doubles the speed of attention on an H100, since it doubles the peak.",
            False,
            "the exponentials stay, so it is 1.5x without overlap; 1.55x and 1.62x were published",
        ),
        "i": (
            "E4M3 keeps every number within 6.25 % of itself.",
            False,
            "that holds for normal numbers; below 2**-6 the spacing is fixed, and beyond 448 there is nothing",
        ),
        "j": (
            "In E4M3, an outlier 64 times as large as all other numbers costs each of them 6 bits of precision.",
            False,
            "the format is floating-point: a number keeps its bits until the scale makes it subnormal, at 1/28672 of "
            "the largest",
        ),
        "k": (
            "Without FlashAttention, and with the scores kept in 16 bits, FP8 saves few of the bytes of attention.",
            True,
            "at L = 4096 and heads of 128, the passes over scores and weights are 97 % of the bytes, which FP8 leaves",
        ),
    },
)
