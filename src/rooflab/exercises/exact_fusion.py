"""Exercise 3: FlashAttention computes the same function in another order; sparse and linear attention do not.

All arrays are of one head: L rows of d_h numbers.
"""

import tracemalloc

import numpy as np

from ..ledger import WORKLOADS
from ..lesson import ArrayQuestion, Judged, Question, TrueFalse


def operands(L, head_dim, seed=0):
    """Return random Q, K and V of one head, float32."""
    return np.random.default_rng(seed).standard_normal((3, L, head_dim), dtype=np.float32)


def plain_attention(Q, K, V):
    """Return attention in three steps, in the precision of the inputs: scores, softmax, weighted sum."""
    S = Q @ K.T * Q.shape[1] ** -0.5  # (L, L)
    P = np.exp(S - S.max(axis=1, keepdims=True))  # (L, L)
    P /= P.sum(axis=1, keepdims=True)
    return P @ V  # (L, head_dim)


def exact_attention(Q, K, V):
    """Return the same in float64, whose rounding is 5e8 times finer than that of float32."""
    return plain_attention(*(each.astype(np.float64) for each in (Q, K, V)))


def outputs_here(L, head_dim):
    """Return O of bf16 attention in three kernels and in one, run on this machine's GPU, and in float64.

    NumPy arrays by name; without a GPU there are none.
    """
    from .. import timing

    if not timing.has_gpu():
        return {}
    import torch

    from ..kernels import attention

    q, k, v = (torch.from_numpy(each)[None, None].to("cuda", torch.bfloat16) for each in operands(L, head_dim))
    found = {
        "three kernels": attention.naive(q, k, v, False),
        "one kernel": torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "float64": attention.reference(q, k, v, False),
    }
    return {name: out[0, 0].double().cpu().numpy() for name, out in found.items()}


def _generator(pick) -> np.random.Generator:
    return np.random.default_rng(pick(range(10**6)))


def _peak_bytes(run) -> int:
    """Return the most memory that NumPy held for `run` at one time, in byte."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _never_square(answer, **extra) -> bool:
    """Return whether `answer` stays below the memory of one L x L matrix of float32."""
    L = 1024
    Q, K, V = operands(L, 16)
    return _peak_bytes(lambda: answer(Q=Q, K=K, V=V, **extra)) < 4 * L * L


# (a) online softmax --------------------------------------------------------------------------------------------------


def _update(maximum, total, scores):
    new = max(maximum, scores.max())
    return new, total * np.exp(maximum - new) + np.exp(scores - new).sum()


def _draw_update(pick) -> dict:
    rng, scale = _generator(pick), pick((1, 30, 300))
    earlier = scale * rng.standard_normal(pick((0, 1, 5, 64)))
    scores = scale * rng.standard_normal(pick((1, 2, 7, 64))) + pick((-600, 0, 800))
    if not earlier.size:
        return {"maximum": -np.inf, "total": 0.0, "scores": scores}
    return {"maximum": earlier.max(), "total": np.exp(earlier - earlier.max()).sum(), "scores": scores}


@np.errstate(all="ignore")
def _update_wrong(maximum, total, scores, mistake):
    new, block = max(maximum, scores.max()), scores.max()
    return {
        "no rescale": (new, total + np.exp(scores - new).sum()),
        "inverse": (new, total * np.exp(new - maximum) + np.exp(scores - new).sum()),
        "no maximum": (new, total + np.exp(scores).sum()),
        "block maximum": (block, total * np.exp(maximum - block) + np.exp(scores - block).sum()),
        "mixed": (new, total * np.exp(maximum - new) + np.exp(scores - block).sum()),
        "forgets": (new, np.exp(scores - new).sum()),
        "swapped": _update(maximum, total, scores)[::-1],
        "old maximum": (maximum, total + np.exp(scores - maximum).sum()),
    }[mistake]


def _walks_any_row(answer) -> bool:
    rng = np.random.default_rng(5)
    for length, block in ((1, 1), (9, 1), (10, 3), (64, 64), (1000, 96), (1000, 1)):
        row = 50 * rng.standard_normal(length)
        maximum, total = -np.inf, 0.0
        for start in range(0, length, block):
            maximum, total = answer(maximum=maximum, total=total, scores=row[start : start + block])
        if not np.allclose((maximum, total), (row.max(), np.exp(row - row.max()).sum())):
            return False
    return True


online_softmax = ArrayQuestion(
    "online softmax",
    "",
    {"maximum": 1.0, "total": 2.5, "scores": np.array([0.5, 3.0, -1.0])},
    _draw_update,
    _update,
    {
        reason: lambda mistake=mistake, **g: _update_wrong(**g, mistake=mistake)
        for mistake, reason in {
            "no rescale": "the sum so far refers to the old maximum: rescale it when the maximum grows",
            "inverse": "you rescaled the wrong way: when the maximum grows, the sum so far must shrink",
            "no maximum": "you did not subtract the maximum, so exp overflows for large scores",
            "block maximum": "an earlier score may exceed all of this block; keep the larger maximum",
            "mixed": "subtract the running maximum from the new scores too, not the maximum of their block",
            "forgets": "the sum over the earlier blocks is missing",
            "swapped": "return the maximum first, then the sum",
            "old maximum": "the new scores can raise the maximum",
        }.items()
    },
    rules={"carried block by block over a whole row, it must end at the row's maximum and sum": _walks_any_row},
)


# (b) tiled attention -------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def _tiled(Q, K, V, tile, scale=None, rescale_total=True, rescale_output=True, divide="at the end"):
    L, head_dim = Q.shape
    maximum, total, output = np.full((L, 1), -np.inf), np.zeros((L, 1)), np.zeros((L, head_dim))
    for start in range(0, len(K), tile):
        S = Q @ K[start : start + tile].T * (head_dim**-0.5 if scale is None else scale)
        new = np.maximum(maximum, S.max(axis=1, keepdims=True))
        P, shrink = np.exp(S - new), np.exp(maximum - new)
        total = total * (shrink if rescale_total else 1) + P.sum(axis=1, keepdims=True)
        output = output * (shrink if rescale_output else 1) + P @ V[start : start + tile]
        if divide == "in each tile":
            output = output / total
        maximum = new
    return output / total if divide == "at the end" else output


@np.errstate(all="ignore")
def _without_maximum(Q, K, V, tile):
    P = np.exp(Q @ K.T * Q.shape[1] ** -0.5)  # in float32, which ends near exp(88)
    return P @ V / P.sum(axis=1, keepdims=True)


def _softmax_per_tile(Q, K, V, tile, mean):
    starts = range(0, len(K), tile)
    parts = [exact_attention(Q, K[start : start + tile], V[start : start + tile]) for start in starts]
    return sum(parts) / (len(parts) if mean else 1)


def _without_tail(Q, K, V, tile):
    whole = len(K) // tile * tile
    return exact_attention(Q, K[:whole], V[:whole]) if whole else np.zeros(Q.shape)


def _draw_tiled(pick) -> dict:
    head_dim, L = pick((8, 16, 32)), pick((1, 5, 40, 64, 100))
    Q, K, V = operands(L, head_dim, seed=pick(range(10**6)))
    return {"Q": Q * np.float32(pick((1, 5, 20))), "K": K, "V": V, "tile": pick((1, 7, 16, 32, 128))}


def _stays_float32(answer) -> bool:
    Q, K, V = operands(40, 16)
    return np.asarray(answer(Q=Q, K=K, V=V, tile=16)).dtype == np.float32


tiled_attention = ArrayQuestion(
    "tiled attention",
    "",
    dict(zip("QKV", operands(96, 16), strict=True)) | {"tile": 32},
    _draw_tiled,
    lambda Q, K, V, tile: exact_attention(Q, K, V),
    {
        "the scores must be scaled by 1 / sqrt(head_dim)": lambda **g: _tiled(**g, scale=1),
        "the scale is 1 / sqrt(head_dim), not 1 / head_dim": lambda **g: _tiled(**g, scale=1 / g["Q"].shape[1]),
        "the output so far refers to the old maximum: rescale it as you rescale the sum": (
            lambda **g: _tiled(**g, rescale_output=False)
        ),
        "the sum so far refers to the old maximum: rescale it as you rescale the output": (
            lambda **g: _tiled(**g, rescale_total=False)
        ),
        "neither the sum nor the output so far is rescaled when the maximum grows": (
            lambda **g: _tiled(**g, rescale_total=False, rescale_output=False)
        ),
        "the result must be finite (the exponential overflows: subtract the running maximum first)": _without_maximum,
        "divide by the sum once all tiles are in": lambda **g: _tiled(**g, divide="never"),
        "you divided by the sum in each tile, so early tiles are divided more than once": (
            lambda **g: _tiled(**g, divide="in each tile")
        ),
        "you took a softmax of each tile and added the results; the sum must run over all tiles": (
            lambda **g: _softmax_per_tile(**g, mean=False)
        ),
        "you took a softmax of each tile and averaged the results; the sum must run over all tiles": (
            lambda **g: _softmax_per_tile(**g, mean=True)
        ),
        "the last tile is missing where the tile does not divide L": lambda **g: _without_tail(**g),
    },
    # The float32 scores of the largest operands are near 100, and an exponential turns their rounding into a share.
    tolerance=1e-4,
    rules={
        "the result is not float32: np.zeros, np.full and np.sqrt of a Python number give float64, "
        "which spreads to all that it meets": _stays_float32,
        "at L = 1024 and tile 64 you held as much memory as an L x L matrix; keep one tile of the scores at a time": (
            lambda answer: _never_square(answer, tile=64)
        ),
    },
)


# (c) equal bits ------------------------------------------------------------------------------------------------------


def _equal_share(a, b):
    return float((a == b).mean())


def _draw_pair(pick) -> dict:
    rng = _generator(pick)
    a = rng.standard_normal((pick((8, 32)), pick((4, 16)))).astype(np.float32)
    changed = rng.random(a.shape) < pick((0.3, 0.6, 0.9))
    changed.flat[:2] = True, False  # some of both
    return {"a": a, "b": np.where(changed, np.nextafter(a, np.float32(9)), a)}


equal_share = Question(
    "share of equal elements",
    "",
    {"a": np.float32([[1, 2], [3, 4]]), "b": np.float32([[1, 2.0000002], [3.0000002, 4.0000005]])},
    _draw_pair,
    _equal_share,
    {
        "a tolerance hides the difference; count the elements that are equal to the bit": (
            lambda a, b: float(np.isclose(a, b).mean())
        ),
        "that asks whether all are equal; count how many are": lambda a, b: float(np.array_equal(a, b)),
        "that is the number of equal elements; divide by their number": lambda a, b: int((a == b).sum()),
        "return a share between 0 and 1, not a percentage": lambda a, b: 100 * _equal_share(a, b),
        "that is the share of elements that differ": lambda a, b: 1 - _equal_share(a, b),
    },
)


def _max_error(got, exact):
    return float(np.abs(got - exact).max() / np.abs(exact).max())


def _draw_error(pick) -> dict:
    rng = _generator(pick)
    exact = pick((0.1, 1, 30)) * rng.standard_normal((pick((8, 32)), 16))
    got = (exact * (1 - pick((1e-6, 1e-5, 1e-2)) * rng.random(exact.shape))).astype(np.float32)
    return {"got": got, "exact": exact}


max_error = Question(
    "largest error",
    "",
    {"got": np.float32([1, 2, -4]), "exact": np.array([1.0000001, 2.0000003, -4.0000003])},
    _draw_error,
    _max_error,
    {
        "you rounded the exact result to float32; subtract in float64": (
            lambda got, exact: float(np.abs(got - exact.astype(np.float32)).max() / np.abs(exact).max())
        ),
        "that is the mean; the largest error is asked for": (
            lambda got, exact: float(np.abs(got - exact).mean() / np.abs(exact).max())
        ),
        "take absolute values before the maximum: errors have both signs": (
            lambda got, exact: float((got - exact).max() / np.abs(exact).max())
        ),
        "divide by the largest absolute value of the exact result": (
            lambda got, exact: float(np.abs(got - exact).max())
        ),
        "divide by the largest absolute value of all; element by element, values near 0 would decide": (
            lambda got, exact: float((np.abs(got - exact) / np.abs(exact)).max())
        ),
    },
)

REPORT = {"plain equals tiled": "share", "tile 64 equals tile 128": "share", "plain": "error", "tiled": "error"}


def _report_problems(answer):
    report = answer()
    if not isinstance(report, dict) or set(report) != set(REPORT):
        yield f"return a dict with the keys {', '.join(REPORT)}"
        return
    for key, kind in REPORT.items():
        value = report[key]
        if isinstance(value, (bool, str)) or not np.isscalar(value) or not 0 <= value <= 1:
            yield f"{key!r} must be a number between 0 and 1, and it is {value!r}"
        elif kind == "share" and value > 0.9:
            yield f"{key!r} is {value:.2g}: is a result compared with itself, or within a tolerance?"
        elif kind == "share" and value == 0:
            yield f"{key!r} is 0: some elements do agree; are both results float32 and of the same Q, K and V?"
        elif kind == "error" and value > 1e-5:
            yield f"the error of {key!r} is {value:.2g}: more than rounding; compare with exact_attention(Q, K, V)"
        elif kind == "error" and value < 1e-9:
            yield f"the error of {key!r} is {value:.2g}: float32 is not so exact; is it compared with itself?"
    if answer() != report:
        yield "the second call returned other numbers; use the same Q, K and V each time"


bit_report = Judged("equal bits", (), _report_problems)


# (d) other functions -------------------------------------------------------------------------------------------------


def _window(Q, K, V, radius, hidden=-np.inf, scale=None, above_only=False, renormalise=True):
    Q, K, V = (each.astype(np.float64) for each in (Q, K, V))
    S = Q @ K.T * (Q.shape[1] ** -0.5 if scale is None else scale)
    distance = np.arange(len(Q))[:, None] - np.arange(len(K))[None, :]
    seen = (np.abs(distance) <= radius) & ((distance >= 0) | (not above_only))
    if not renormalise:
        P = np.exp(S - S.max(axis=1, keepdims=True))
        return (P / P.sum(axis=1, keepdims=True) * seen) @ V
    S = np.where(seen, S, hidden)
    P = np.exp(S - S.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True) @ V


def _draw_window(pick) -> dict:
    Q, K, V = operands(pick((20, 48, 64)), pick((8, 16)), seed=pick(range(10**6)))
    return {"Q": Q, "K": K, "V": V, "radius": pick((1, 2, 5, 9))}


window_attention = ArrayQuestion(
    "sliding window",
    "",
    dict(zip("QKV", operands(48, 16), strict=True)) | {"radius": 4},
    _draw_window,
    _window,
    {
        "hidden keys need a score of -inf: a score of 0 still has weight exp(0) = 1": (
            lambda **g: _window(**g, hidden=0.0)
        ),
        "hide the keys before the softmax, so that the weights of the visible ones add up to 1": (
            lambda **g: _window(**g, renormalise=False)
        ),
        "the key at distance radius is visible too": lambda **g: _window(**g | {"radius": g["radius"] - 1}),
        "the window reaches to both sides": lambda **g: _window(**g, above_only=True),
        "the window reaches radius keys to each side, not radius / 2": (
            lambda **g: _window(**g | {"radius": g["radius"] // 2})
        ),
        "the scores must be scaled by 1 / sqrt(head_dim)": lambda **g: _window(**g, scale=1),
        "every key is visible: that is full attention": lambda radius, **g: exact_attention(**g),
    },
    tolerance=1e-4,
)


@np.errstate(all="ignore")
def _linear(Q, K, V, feature=lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))), divide=True, keys=True):
    Q, K, V = (each.astype(np.float64) for each in (Q, K, V))
    Q, K = feature(Q), feature(K) if keys else K
    output = Q @ (K.T @ V)
    return output / (Q @ K.sum(axis=0))[:, None] if divide else output


linear_attention = ArrayQuestion(
    "linear attention",
    "",
    dict(zip("QKV", operands(48, 16), strict=True)),
    lambda pick: dict(zip("QKV", operands(pick((20, 48)), pick((8, 16)), seed=pick(range(10**6))), strict=True)),
    _linear,
    {
        "divide each row by the sum of its weights, phi(q) . sum of phi(k)": lambda **g: _linear(**g, divide=False),
        "apply phi to the keys too": lambda **g: _linear(**g, keys=False),
        "phi is elu(x) + 1; you left out the + 1": (
            lambda **g: _linear(**g, feature=lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))))
        ),
        "phi is elu(x) + 1: exp(x) for negative x, not 1": lambda **g: _linear(
            **g, feature=lambda x: np.maximum(x, 0) + 1
        ),
        "phi is elu(x) + 1, not relu": lambda **g: _linear(**g, feature=lambda x: np.maximum(x, 0)),
        "phi is elu(x) + 1, not exp": lambda **g: _linear(**g, feature=np.exp),
        "that is softmax attention": lambda **g: exact_attention(**g),
    },
    tolerance=1e-4,
    rules={
        "at L = 1024 you held as much memory as an L x L matrix; multiply phi(K)^T and V first": _never_square,
    },
)


# (e) FLOP ------------------------------------------------------------------------------------------------------------

METHODS = ("plain", "tiled", "window", "linear")


def _full(L, head_dim):
    return WORKLOADS["attention_prefill"].flop(B=1, h=1, L=L, d_h=head_dim, c=1)


def _forward(method, L, head_dim, radius, **changed):
    pairs = L * (2 * radius + 1) - radius * (radius + 1)  # fewer at both ends of the row
    flop = {"plain": _full(L, head_dim), "tiled": _full(L, head_dim), "window": 4 * pairs * head_dim}
    return (flop | {"linear": 4 * L * head_dim**2} | changed)[method]


forward_flop = Question(
    "forward FLOP",
    "FLOP",
    {"method": "tiled", "L": 4096, "head_dim": 128, "radius": 128},
    lambda pick: {
        "method": pick(METHODS),
        "L": pick((4096, 8192, 16384, 65536)),
        "head_dim": pick((64, 128, 256)),
        "radius": pick((32, 64, 128)),
    },
    _forward,
    {
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _forward(**g) / 2,
        "tiling leaves out no score: it does the products of the plain version": (
            lambda **g: _forward(**g, tiled=_full(g["L"], g["head_dim"]) / 2)
        ),
        "tiling does not hide keys: every query still meets all L of them": (
            lambda **g: _forward(**g, tiled=_forward(**g | {"method": "window"}))
        ),
        "linear attention never multiplies L x L numbers: phi(K)^T V comes first": (
            lambda **g: _forward(**g, linear=_full(g["L"], g["head_dim"]))
        ),
        "linear attention has two products, phi(K)^T V and phi(Q) times that": (
            lambda **g: _forward(**g, linear=2 * g["L"] * g["head_dim"] ** 2)
        ),
        "the window leaves out the other scores; the rest of them is never computed": (
            lambda **g: _forward(**g, window=_full(g["L"], g["head_dim"]))
        ),
        "the window reaches radius keys to each side: 2 radius + 1 keys per query": (
            lambda **g: _forward(**g, window=4 * g["L"] * g["radius"] * g["head_dim"])
        ),
    },
    # The ends of the row (radius / 2 L) and the sums that divide (3 / 4 head_dim) may be counted or not.
    tolerance=0.02,
)


def _backward(method, L, head_dim):
    return 2 * L**2 * head_dim * (5 if method == "tiled" else 4)


backward_flop = Question(
    "backward FLOP",
    "FLOP",
    {"method": "tiled", "L": 4096, "head_dim": 128},
    lambda pick: {"method": pick(METHODS[:2]), "L": pick((2048, 4096, 8192)), "head_dim": pick((64, 128, 256))},
    _backward,
    {
        "the tiled version kept no S, so it must multiply Q and K^T again": lambda **g: _backward(**g | {"method": ""}),
        "the plain version kept P, so it need not multiply Q and K^T again": (
            lambda **g: _backward(**g | {"method": "tiled"})
        ),
        "you have the two versions the wrong way round: who kept P?": (
            lambda **g: _backward(**g | {"method": {"plain": "tiled"}.get(g["method"])})
        ),
        "that is the forward pass": lambda method, L, head_dim: _full(L, head_dim),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _backward(**g) / 2,
        "recomputing S takes one product, not two: O is not needed again": (
            lambda method, L, head_dim: 2 * L**2 * head_dim * (6 if method == "tiled" else 4)
        ),
    },
)


# (f) verdict ---------------------------------------------------------------------------------------------------------

verdict = TrueFalse(
    "verdict",
    {
        "a": (
            "FlashAttention and three-kernel attention are the same function of real numbers.",
            True,
            "the rescaling is an identity, exp(a - b) exp(b - c) = exp(a - c); nothing is left out",
        ),
        "b": (
            "Their results are identical to the bit.",
            False,
            "they add in another order and round in other places",
        ),
        "c": (
            "Where the two differ, the tiled result is the one with the rounding error.",
            False,
            "both are rounded; their errors against float64 have the same size",
        ),
        "d": (
            "The forward pass of FlashAttention saves matrix FLOP.",
            False,
            "it does the same two products, and a little more to rescale",
        ),
        "e": (
            "Being exact costs nothing: neither pass does more operations than the plain one.",
            False,
            "the forward pass rescales, and the backward pass multiplies Q and K^T again",
        ),
        "f": (
            "S and P never reach main memory.",
            True,
            "a tile of them lives on the chip, and is used up before the next one",
        ),
        "g": (
            "Tiling changes which keys a query sees.",
            False,
            "every query meets every key, a tile at a time",
        ),
        "h": (
            "A sliding-window mask can be computed by a tiled kernel, which then skips whole tiles.",
            True,
            "the mask chooses the function, the tiles choose the order; the two combine",
        ),
        "i": (
            "Linear attention is softmax attention up to rounding.",
            False,
            "it has another weight, phi(q) . phi(k) in place of exp(q . k / sqrt(d)), and is off by far more",
        ),
        "j": (
            "An algorithm whose result depends on the tile size must also differ from run to run.",
            False,
            "with a fixed tile and a fixed order of additions, the same input gives the same bits",
        ),
    },
)
