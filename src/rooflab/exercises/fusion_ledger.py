"""Exercise 4: attention as a list of kernels with the tensors that each reads and writes, and what fusing them saves.

A kernel is {"reads": [names], "writes": [names]}. Q, K, V and O are L x d_h per head; every other tensor is L x L.
"""

from unittest import mock

from .. import timing
from ..ledger import WORKLOADS
from ..lesson import Checked, Judged, Question, TrueFalse

NARROW = ("Q", "K", "V", "O")


def launches_here():
    """Return how many kernels this machine's GPU runs for attention in each version; without a GPU there are none."""
    from .. import timing

    if not timing.has_gpu():
        return {}
    import torch

    from ..kernels import attention

    q, k, v = (torch.randn(1, 8, 1024, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    versions = {
        "three kernels": lambda: attention.naive(q, k, v, False),
        "PyTorch, op by op": lambda: attention.eager(q, k, v, False),
        "one kernel": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    }
    return {name: timing.count_launches(call) for name, call in versions.items()}


def _kernel(reads: str, writes: str) -> dict:
    return {"reads": reads.split(), "writes": writes.split()}


THREE = [_kernel("Q K", "S"), _kernel("S", "P"), _kernel("P V", "O")]
FIVE = [
    _kernel("Q K", "S"),
    _kernel("S", "S_scaled"),
    _kernel("S_scaled", "S_masked"),
    _kernel("S_masked", "P"),
    THREE[2],
]
FUSED = [_kernel("Q K V", "O")]
# Further ledgers for the checks: scale only, dropout only, softmax inside the first product, all five and dropout.
_FOUR = [*FIVE[:2], _kernel("S_scaled", "P"), THREE[2]]
_DROPOUT = [*THREE[:2], _kernel("P", "P_dropped"), _kernel("P_dropped V", "O")]
_TWO = [_kernel("Q K", "P"), THREE[2]]
_SIX = [*FIVE[:4], *_DROPOUT[2:]]


# Tables --------------------------------------------------------------------------------------------------------------


def _shape_problems(table, names):
    """Yield what keeps `table` from being a list of kernels that a GPU could run in order."""
    known = ", ".join(names)
    if not isinstance(table, list) or not all(isinstance(kernel, dict) for kernel in table):
        yield f"return a list of dicts, one per kernel; got {type(table).__name__}"
        return
    written = {"Q", "K", "V"}
    for place, kernel in enumerate(table, 1):
        if set(kernel) != {"reads", "writes"}:
            yield f"kernel {place} needs the keys reads and writes, and has {', '.join(map(str, kernel)) or 'none'}"
            return
        for key, tensors in kernel.items():
            if not isinstance(tensors, (list, tuple)) or any(tensor not in names for tensor in tensors):
                yield f"kernel {place}, {key}: give a list of names from {known}; got {tensors!r}"
                return
        for tensor in kernel["reads"]:
            if tensor not in written:
                yield f"kernel {place} reads {tensor}, which no kernel before it has written"
        for tensor in kernel["writes"]:
            if tensor in written:
                yield f"kernel {place} writes {tensor}, which is there already"
            written.add(tensor)
    if "O" not in written:
        yield "no kernel writes the result O"


def _table(name, want, count_reason, extra_reasons=lambda table: ()):
    names = sorted({tensor for kernel in [*want, *THREE] for tensors in kernel.values() for tensor in tensors})

    def problems(answer):
        table = answer()
        yield from _shape_problems(table, names)
        yield from extra_reasons(table)
        for tensor in [tensor for kernel in table for tensor in kernel["writes"] if tensor != "O"]:
            if not any(tensor in kernel["reads"] for kernel in table):
                yield f"{tensor} is written, and no kernel reads it"
        if len(table) != len(want):
            yield f"{count_reason}; your table has {len(table)}"
        for place, (kernel, right) in enumerate(zip(table, want, strict=False), 1):
            for key, verb in (("reads", "read"), ("writes", "write")):
                got, wanted = sorted(kernel[key]), sorted(right[key])
                if len(got) > len(wanted):
                    yield f"kernel {place} need not {verb} all of {', '.join(got)}"
                if got != wanted:
                    yield f"kernel {place} does not {verb} what it needs; you have {', '.join(got) or 'nothing'}"

    return Judged(name, (), problems)


def _fused_reasons(table):
    for tensor in ("S", "P"):
        if any(tensor in (*kernel["reads"], *kernel["writes"]) for kernel in table):
            yield f"{tensor} is neither written to memory nor read from it: a tile of it lives on the chip"


three_kernels = _table(
    "three kernels", THREE, "there are three kernels: a product, the softmax, and a product with the scale in the first"
)
five_kernels = _table("five kernels", FIVE, "scale and mask are now kernels of their own, which makes five")
fused_kernel = _table("one kernel", FUSED, "everything is one kernel", _fused_reasons)


# Counts --------------------------------------------------------------------------------------------------------------


def _passes(kernels, keys=("reads", "writes"), narrow=False):
    names = [tensor for kernel in kernels for key in keys for tensor in kernel[key]]
    return sum((tensor in NARROW) == narrow for tensor in names)


_EXAMPLE = {"before": THREE, "after": FUSED}


def _draw_pair(pick) -> dict:
    before = pick((THREE, FIVE, _FOUR, _DROPOUT, _SIX))
    return {"before": before, "after": pick((FUSED, _TWO) if before is THREE else (FUSED, _TWO, THREE))}


def _launches(before, after):
    return len(before) - len(after)


saved_launches = Question(
    "saved launches",
    "launches",
    _EXAMPLE,
    _draw_pair,
    _launches,
    {
        "what is left has to be launched too: k kernels to one saves k - 1 launches": lambda before, after: len(before),
        "that is the number of launches that are left": lambda before, after: len(after),
        "that is the number of L x L passes; count kernels": lambda before, after: _passes(before) - _passes(after),
        "a saving is positive: before minus after": lambda before, after: -_launches(before, after),
    },
)


square_passes = Question(
    "L x L passes",
    "passes",
    {"kernels": THREE},
    lambda pick: {"kernels": pick((THREE, FIVE, FUSED, _FOUR, _DROPOUT, _TWO, _SIX))},
    _passes,
    {
        "an intermediate is written and read: count both": lambda kernels: _passes(kernels, keys=["writes"]),
        "only L x L tensors count; Q, K, V and O do not": (
            lambda kernels: _passes(kernels) + _passes(kernels, narrow=True)
        ),
        "that is the number of kernels; count tensors that one reads or writes": lambda kernels: len(kernels),
        "S and P are not the only L x L tensors: all that stands between the products counts, "
        "scaled, masked or dropped out": lambda kernels: sum(
            tensor in ("S", "P") for kernel in kernels for tensors in kernel.values() for tensor in tensors
        ),
        "one tensor read or written by one kernel is one pass": lambda kernels: 2 * _passes(kernels),
    },
)


def _moved(kernels, B, h, L, d_h, bytes_per_element, **changed):
    """Return the bytes; `changed` replaces a count by a wrong one."""
    keys = changed.get("keys", ("reads", "writes"))
    names = [name for kernel in kernels for key in keys for name in kernel[key]]
    names = [name for name in names if name not in changed.get("forgotten", ())]
    if changed.get("once"):
        names = set(names)
    narrow, wide = (sum((name in NARROW) == kind for name in names) for kind in (True, False))
    narrow, wide = narrow * changed.get("narrow", 1), wide * changed.get("wide", 1)
    return bytes_per_element * B * h * (narrow * L * d_h + wide * L * changed.get("columns", L))


def _draw_moved(pick) -> dict:
    kernels = pick((THREE, FIVE, FUSED, _FOUR, _DROPOUT, _TWO, _SIX))
    sizes = {"B": pick((1, 2, 8)), "h": pick((8, 12, 32)), "L": pick((512, 2048, 4096)), "d_h": pick((64, 128))}
    return {"kernels": kernels, **sizes, "bytes_per_element": pick((1, 2, 4))}


moved_bytes = Question(
    "moved bytes",
    "byte",
    {"kernels": THREE, "B": 1, "h": 32, "L": 4096, "d_h": 128, "bytes_per_element": 2},
    _draw_moved,
    _moved,
    {
        "you counted elements, not bytes: multiply by the bytes per element": (
            lambda **g: _moved(**g | {"bytes_per_element": 1})
        ),
        "the reads are missing: what a kernel writes, the next one reads": lambda **g: _moved(**g, keys=["writes"]),
        "the writes are missing": lambda **g: _moved(**g, keys=["reads"]),
        "count a tensor again for each kernel that reads or writes it": lambda **g: _moved(**g, once=True),
        "reading P is missing": lambda **g: _moved(**g | {"kernels": _without_read(g["kernels"], "P")}),
        "S is not the only large tensor: P is as large": lambda **g: _moved(**g, forgotten=("P", *NARROW)),
        "Q, K, V and O are bytes too": lambda **g: _moved(**g, forgotten=NARROW),
        "the L x L tensors are missing": lambda **g: _moved(**g, wide=0),
        "every head has its own tensors; multiply by h": lambda **g: _moved(**g) / g["h"],
        "every sequence of the batch has its own tensors; multiply by B": lambda **g: _moved(**g | {"B": 1}),
        "every head has its own L x L tensors too; multiply them by h": lambda **g: _moved(**g, wide=1 / g["h"]),
        "S, P and their like are L x L, not L x d_h": lambda **g: _moved(**g, columns=g["d_h"]),
    },
)


def _without_read(kernels, name):
    return [kernel | {"reads": [tensor for tensor in kernel["reads"] if tensor != name]} for kernel in kernels]


def _naive_intensity(L, d_h, bytes_per_element):
    return WORKLOADS["attention_naive"].intensity()(L=L, d_h=d_h, b=bytes_per_element)


def _per_element(L, d_h, narrow, wide):
    """Return FLOP per element for so many passes over L x d_h and over L x L tensors."""
    return 4 * L * L * d_h / (narrow * L * d_h + wide * L * L)


naive_intensity = Question(
    "intensity of three kernels",
    "FLOP/byte",
    {"L": 4096, "d_h": 128, "bytes_per_element": 2},
    lambda pick: {
        "L": pick((512, 1024, 4096, 16384)),
        "d_h": pick((64, 128, 256)),
        "bytes_per_element": pick((1, 2, 4)),
    },
    _naive_intensity,
    {
        "you counted elements, not bytes": lambda **g: _naive_intensity(**g | {"bytes_per_element": 1}),
        "that holds for 2 bytes per element only": lambda **g: _naive_intensity(**g | {"bytes_per_element": 2}),
        "that is the limit for a long context; Q, K, V and O are bytes too": (
            lambda L, d_h, bytes_per_element: d_h / bytes_per_element
        ),
        "that is the fused version: here S and P pass through memory": lambda L, d_h, bytes_per_element: (
            L / bytes_per_element
        ),
        "reading P is missing": (lambda L, d_h, bytes_per_element: _per_element(L, d_h, 4, 3) / bytes_per_element),
        "S and P make four passes: each is written and read": (
            lambda L, d_h, bytes_per_element: _per_element(L, d_h, 4, 2) / bytes_per_element
        ),
        "only S is counted once; S and P make four passes": (
            lambda L, d_h, bytes_per_element: _per_element(L, d_h, 4, 1) / bytes_per_element
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP, and there are two products": (
            lambda **g: _naive_intensity(**g) / 2
        ),
        "that is bytes per FLOP; turn it over": lambda **g: 1 / _naive_intensity(**g),
    },
)


def _kept(fused, B, h, L, bytes_per_element):
    return B * h * L * (4 if fused else L * bytes_per_element)


kept_bytes = Question(
    "kept for the backward pass",
    "byte",
    {"fused": True, "B": 1, "h": 32, "L": 4096, "bytes_per_element": 2},
    lambda pick: {
        "fused": pick((True, False)),
        "B": pick((1, 2, 8)),
        "h": pick((8, 12, 32)),
        "L": pick((512, 2048, 4096)),
        "bytes_per_element": pick((1, 2)),
    },
    _kept,
    {
        "the fused version keeps one number per row, not the L x L matrix P": lambda **g: _kept(**g | {"fused": False}),
        "the three-kernel version keeps P, which is L x L per head": lambda **g: _kept(**g | {"fused": True}),
        "you have the two versions the wrong way round": lambda **g: _kept(**g | {"fused": not g["fused"]}),
        "the number per row is float32, whatever the type of Q": (
            lambda **g: _kept(**g) * (g["bytes_per_element"] / 4 if g["fused"] else 1)
        ),
        "you counted elements, not bytes": lambda **g: _kept(**g) / (4 if g["fused"] else g["bytes_per_element"]),
        "P is enough: S is not needed once P is there": lambda **g: _kept(**g) * (1 if g["fused"] else 2),
        "one number per row is enough: the logarithm of the sum, plus the maximum": (
            lambda **g: _kept(**g) * (2 if g["fused"] else 1)
        ),
        "every head has its own; multiply by h": lambda **g: _kept(**g | {"h": 1}),
        "every sequence has its own; multiply by B": lambda **g: _kept(**g | {"B": 1}),
    },
)


# Launches, counted ---------------------------------------------------------------------------------------------------


def counted_launches(L: int = 64, head_dim: int = 16) -> Checked:
    """Return how many kernels the book's three-kernel attention launches: on the GPU, or in Triton's interpreter."""
    try:
        from ..kernels import attention
    except ModuleNotFoundError as missing:
        return Checked(f"not counted: {missing.name} is not installed")
    torch, on = attention.torch, "cuda" if timing.has_gpu() else "cpu"
    Q, K, V = torch.randn(3, 1, 1, L, head_dim, device=on).half()

    def run():
        attention.naive(Q, K, V, False)

    if on == "cuda":
        return Checked(f"{timing.count_launches(run)} launches, counted by torch.profiler on this GPU")
    return Checked(f"{_interpreted(run)} launches, counted in Triton's interpreter, as there is no GPU here")


def _interpreted(run) -> int:
    from triton.runtime.interpreter import GridExecutor

    with mock.patch.object(GridExecutor, "__call__", autospec=True, side_effect=GridExecutor.__call__) as launched:
        run()
    return launched.call_count


# Verdict -------------------------------------------------------------------------------------------------------------

verdict = TrueFalse(
    "verdict",
    {
        "a": (
            "Fusing k kernels into one saves k launches.",
            False,
            "the fused kernel is launched too, so it saves k - 1",
        ),
        "b": (
            "The fused kernel moves fewer bytes because it does fewer multiplications.",
            False,
            "it does the same multiplications; S and P no longer pass through memory",
        ),
        "c": (
            "With scale and mask as kernels of their own, fusing all saves 8 passes over L x L tensors.",
            True,
            "four intermediates are each written and read",
        ),
        "d": (
            "When L doubles, the bytes of three kernels grow about fourfold, those of the fused one twofold.",
            True,
            "L x L tensors against L x d_h tensors",
        ),
        "e": (
            "At L = 4096, three-kernel attention is bandwidth-bound on an H100 SXM although prefill is long.",
            True,
            "its intensity is below d_h / 2, and the ridge is far above that",
        ),
        "f": (
            "A kernel reads at least as many bytes from main memory as its table says, whatever the caches hold.",
            False,
            "what an earlier kernel left in L2 need not come from main memory, when it is small enough",
        ),
        "g": (
            "Any two neighbouring kernels can be fused without changing the algorithm.",
            False,
            "the second product needs the whole softmax row, so it takes the online softmax",
        ),
        "h": (
            "In inference, storing the log of the sum of each row instead of P saves memory.",
            False,
            "without a backward pass nothing is kept; it is a saving of training",
        ),
    },
)
