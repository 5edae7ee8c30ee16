"""Exercise 6: what a launch costs, and where fewer kernels, a graph or fewer bytes pay.

A measurement is a row of a record: its case, version, GPU time, wall time per call, and launches.
"""

import random

from .. import timing
from ..ledger import LAUNCH_TIME, MEMORY_TIME, WORKLOADS
from ..lesson import Judged, Question, TrueFalse

# The versions in the order in which the text explains them.
VERSIONS = ("eager", "graph", "compiled", "reduce_overhead", "fused_row", "fused_persistent", "fused_graph")


def table(measurements, key: str = "wall_s") -> str:
    """Return a table of one quantity, a line per version and a column per size; times in microseconds."""
    sizes = sorted({row["case"]["rows"] for row in measurements})
    found = {(row["version"], row["case"]["rows"]): row[key] for row in measurements}
    unit = "us" if key.endswith("_s") else ""
    lines = [f"{key} {unit}".ljust(18) + "".join(f"{size:>8,}" for size in sizes) + "  rows"]
    for version in VERSIONS:
        values = [found.get((version, size)) for size in sizes]
        shown = [f"{value * 1e6:8.1f}" if unit and value else f"{value or '':>8}" for value in values]
        lines.append(version.ljust(18) + "".join(shown))
    return "\n".join(lines)


def versions_here(rows: int, columns: int = 4096) -> dict:
    """Return three versions to time on this machine's GPU, by name; without a GPU there are none."""
    if not timing.has_gpu():
        return {}
    from ..kernels import layernorm

    torch = layernorm.torch
    x, residual = torch.randn(2, rows, columns, device="cuda", dtype=torch.bfloat16)
    weight, bias = torch.randn(2, columns, device="cuda", dtype=torch.bfloat16)
    inputs = (x, residual, weight, bias)
    compiled = torch.compile(lambda *each: layernorm.eager(*each), dynamic=False)
    return {
        "eager": lambda: layernorm.eager(*inputs),
        "compiled": lambda: compiled(*inputs),
        "fused_row": lambda: layernorm.fused_row(*inputs),
    }


# (a) the least time of a chain ---------------------------------------------------------------------------------------


def _times_s(kernels, seconds_per_launch, moved_bytes, bytes_per_s) -> tuple:
    launch_s = LAUNCH_TIME(n_launch=kernels, t_launch=seconds_per_launch)
    return launch_s, MEMORY_TIME(Q=moved_bytes, beta=bytes_per_s)


def _chain_s(**g):
    return max(_times_s(**g))


def _draw_machine(pick) -> dict:
    return {
        "seconds_per_launch": pick((1e-6, 3e-6, 9e-6, 12e-6)),
        "bytes_per_s": pick((0.3e12, 1.6e12, 3.35e12, 4.8e12)),
    }


chain_time = Question(
    "least time",
    "s",
    {"kernels": 3, "seconds_per_launch": 9e-6, "moved_bytes": 57344, "bytes_per_s": 4.8e12},
    lambda pick: {
        "kernels": pick((1, 2, 3, 5, 8)),
        "moved_bytes": pick((57e3, 3.2e6, 15e6, 3.7e9)),
        **_draw_machine(pick),
    },
    _chain_s,
    {
        "launches and traffic overlap, so the bound is the larger time, not the sum": lambda **g: sum(_times_s(**g)),
        "the smaller time is not enough: both have to be over": lambda **g: min(_times_s(**g)),
        "every kernel is launched: multiply by their number": lambda **g: _chain_s(**g | {"kernels": 1}),
        "the launches are missing": lambda **g: _times_s(**g)[1],
        "the traffic is missing": lambda **g: _times_s(**g)[0],
        "the bytes are those of all kernels together": (
            lambda **g: max(_times_s(**g)[0], _times_s(**g)[1] * g["kernels"])
        ),
    },
)


def _crossing(kernels, passes, columns, bytes_per_element, seconds_per_launch, bytes_per_s):
    return kernels * seconds_per_launch * bytes_per_s / (passes * columns * bytes_per_element)


crossing_rows = Question(
    "crossing size",
    "rows",
    {
        "kernels": 3,
        "passes": 7,
        "columns": 4096,
        "bytes_per_element": 2,
        "seconds_per_launch": 9e-6,
        "bytes_per_s": 4.8e12,
    },
    lambda pick: {
        "kernels": pick((1, 2, 3, 5)),
        "passes": pick((3, 7, 10)),
        "columns": pick((1024, 4096, 8192)),
        "bytes_per_element": pick((1, 2, 4)),
        **_draw_machine(pick),
    },
    _crossing,
    {
        "all kernels are launched, not one": lambda **g: _crossing(**g | {"kernels": 1}),
        "the number of passes is missing": lambda **g: _crossing(**g | {"passes": 1}),
        "you counted elements, not bytes": lambda **g: _crossing(**g | {"bytes_per_element": 1}),
        "that is a number of bytes; divide by the bytes of a row": (
            lambda **g: _crossing(**g | {"passes": 1, "columns": 1, "bytes_per_element": 1})
        ),
        "a row has more than one column": lambda **g: _crossing(**g | {"columns": 1}),
        "you divided by the number of launches; more launches move the crossing up": (
            lambda **g: _crossing(**g) / g["kernels"] ** 2
        ),
        "that is the inverse": lambda **g: 1 / _crossing(**g),
    },
)


# (b) kernels ---------------------------------------------------------------------------------------------------------

COUNTED = ("eager", "graph", "compiled", "fused_row")


def _count_problems(answer):
    counts = answer()
    if not isinstance(counts, dict) or set(counts) != set(COUNTED):
        yield f"return a dict with the keys {', '.join(COUNTED)}; got {counts!r}"
        return
    for version, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int):
            yield f"{version}: give a whole number, not {count!r}"
    unfused, fused = (WORKLOADS[f"norm_relu_add_{how}"].launches() for how in ("unfused", "fused"))
    if counts["eager"] == 2:
        yield "eager: the ReLU and the addition are operations of their own"
    if counts["eager"] != unfused:
        yield f"eager: count the operations of residual + relu(layer_norm(x)); you have {counts['eager']}"
    if counts["graph"] == fused:
        yield "graph: the host makes one call, but the GPU still runs each kernel that was captured"
    if counts["graph"] != unfused:
        yield f"graph: it holds the kernels of eager; you have {counts['graph']}"
    for version in ("compiled", "fused_row"):
        if counts[version] == 2:
            yield f"{version}: a row is normalised, clipped and added while it is on the chip"
        if counts[version] != fused:
            yield f"{version}: all is fused; you have {counts[version]}"


kernel_counts = Judged("kernels per call", (), _count_problems)


# (c) reading the record ----------------------------------------------------------------------------------------------


def synthetic(seed: int) -> list[dict]:
    """Return measurements made up at random, in random order, for the checks: no machine has these times."""
    rng = random.Random(seed)
    rows = []
    for size in rng.sample((1, 2, 8, 64, 512, 4096, 32768), 4):
        for version in VERSIONS:
            times = {"time_s": rng.uniform(1e-6, 9e-4), "wall_s": rng.uniform(1e-6, 9e-4)}
            case = {"dtype": "bf16", "rows": size, "columns": 4096}
            rows.append({"case": case, "version": version, **times, "launches": rng.choice((1, 3))})
    rng.shuffle(rows)
    return rows


def _by_size(measurements, key="wall_s") -> dict:
    """Return {rows: {version: value}}."""
    found: dict = {}
    for row in measurements:
        found.setdefault(row["case"]["rows"], {})[row["version"]] = row[key]
    return found


def _fastest(measurements, key="wall_s", best=min) -> dict:
    return {size: best(times, key=times.get) for size, times in _by_size(measurements, key).items()}


def _slowest(measurements) -> dict:
    return _fastest(measurements, best=max)


def _fewest(measurements) -> dict:
    return _fastest(measurements, "launches")


def _overall(measurements) -> dict:
    best = min(measurements, key=lambda row: row["wall_s"])["version"]
    return dict.fromkeys(_by_size(measurements), best)


def _compare(right, wrong):
    """Return a `problems` function: the answer must equal `right` on made-up measurements; `wrong` gives reasons."""

    def problems(answer, *extra):
        pairs = []
        for seed in range(6):
            given = synthetic(seed)
            got = answer(given, *extra)
            if got is None:
                yield "your function returned None; end it with a return statement"
                return
            pairs.append((given, got))
        if all(_equal(got, right(given, *extra)) for given, got in pairs):
            return
        for reason, formula in wrong.items():
            if all(_equal(got, formula(given, *extra)) for given, got in pairs):
                yield reason
        given, got = next(pair for pair in pairs if not _equal(pair[1], right(pair[0], *extra)))
        want = right(given, *extra)
        if type(got) is not type(want) or (isinstance(want, dict) and set(got) != set(want)):
            keys = " with the sizes as keys" if isinstance(want, dict) else ""
            yield f"return a {type(want).__name__}{keys}, like {_short(want)}; got {_short(got)}"
        yield f"for made-up measurements you returned {_short(got)}, and it is not what they say"

    return problems


def _equal(got, want) -> bool:
    if isinstance(want, dict):
        return isinstance(got, dict) and set(got) == set(want) and all(_equal(got[key], want[key]) for key in want)
    if isinstance(want, tuple):
        same_length = isinstance(got, (tuple, list)) and len(got) == len(want)
        return same_length and all(_equal(a, b) for a, b in zip(got, want, strict=True))
    if isinstance(want, float):
        return isinstance(got, (int, float)) and abs(got - want) <= 1e-9 * abs(want)
    return got == want


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 90 else f"{text[:87]}..."


fastest = Judged(
    "fastest version",
    ("measurements",),
    _compare(
        _fastest,
        {
            "that is the GPU time; the wall clock is wall_s": lambda rows: _fastest(rows, "time_s"),
            "that is the slowest version": _slowest,
            "that has the fewest launches; the wall clock decides": _fewest,
            "one version need not be the fastest at every size": _overall,
        },
    ),
)


_BOUND = 0.8  # a launch-bound version is busy on the GPU for less than this share of its wall time


def _launch_bound(measurements, version, key="wall_s", factor=_BOUND, turned=False) -> list:
    return sorted(
        row["case"]["rows"]
        for row in measurements
        if row["version"] == version and (row["time_s"] < factor * row["wall_s"]) != turned
    )


def _all_versions_launch_bound(measurements, version) -> list:
    return sorted(row["case"]["rows"] for row in measurements if row["time_s"] < _BOUND * row["wall_s"])


def _each_version(right, wrong):
    def problems(answer):
        for version in ("eager", "compiled"):
            yield from _compare(right, wrong)(answer, version)

    return problems


launch_bound = Judged(
    "launch-bound sizes",
    ("measurements", "version"),
    _each_version(
        _launch_bound,
        {
            "those are the sizes at which the GPU is busy": lambda *g: _launch_bound(*g, turned=True),
            "use the rows of the one version only": _all_versions_launch_bound,
            "less than 0.8 of the wall time, not less than all of it": lambda *g: _launch_bound(*g, factor=1),
            "0.8 of the wall time, not 0.8 of the GPU time": lambda *g: _launch_bound(*g, factor=1 / _BOUND),
            "sort the sizes": lambda rows, version: [
                row["case"]["rows"]
                for row in rows
                if row["version"] == version and row["time_s"] < _BOUND * row["wall_s"]
            ],
        },
    ),
)


def _gains(measurements, version, key="wall_s") -> dict:
    return {
        size: (times["eager"] / times[version], times["eager"] - times[version])
        for size, times in _by_size(measurements, key).items()
    }


def _changed(change):
    return lambda *g: {size: change(*pair) for size, pair in _gains(*g).items()}


gains = Judged(
    "gain over eager",
    ("measurements", "version"),
    lambda answer: _compare(
        _gains,
        {
            "that is the GPU time; the wall clock is wall_s": lambda *g: _gains(*g, key="time_s"),
            "a speed-up is the time of eager over that of the version": _changed(lambda ratio, s: (1 / ratio, s)),
            "the time saved is that of eager minus that of the version": _changed(lambda ratio, s: (ratio, -s)),
            "return the ratio first, then the seconds": _changed(lambda ratio, s: (s, ratio)),
            "return two numbers per size; the seconds are missing": _changed(lambda ratio, s: ratio),
            "return two numbers per size; the ratio is missing": _changed(lambda ratio, s: s),
            "give the seconds as seconds": _changed(lambda ratio, s: (ratio, s * 1e6)),
        },
    )(answer, "compiled"),
)


# (d) prediction against measurement ----------------------------------------------------------------------------------


def _predicted(rows, columns, bytes_per_element, seconds_per_launch, bytes_per_s, total=max, **changed):
    row_bytes = rows * columns * bytes_per_element
    unfused, fused = changed.get("kernels", (3, 1))
    many, few = changed.get("passes", (7, 3))
    before = total(_times_s(unfused, seconds_per_launch, many * row_bytes, bytes_per_s))
    return before / total(_times_s(fused, seconds_per_launch, few * row_bytes, bytes_per_s))


predicted_speedup = Question(
    "predicted speed-up",
    "x",
    {"rows": 1, "columns": 4096, "bytes_per_element": 2, "seconds_per_launch": 9e-6, "bytes_per_s": 4.8e12},
    lambda pick: {
        "rows": pick((1, 64, 512, 1500, 2048, 2500, 8192, 65536)),
        "columns": 4096,
        "bytes_per_element": pick((2, 4)),
        "seconds_per_launch": pick((3e-6, 9e-6, 12e-6)),
        "bytes_per_s": pick((1.6e12, 3.35e12, 4.8e12)),
    },
    _predicted,
    {
        "7/3 holds for large inputs only": lambda **g: 7 / 3,
        "3 holds for small inputs only": lambda **g: 3,
        "the two factors do not multiply: only the larger time counts, before and after": lambda **g: 7,
        "launches and traffic overlap: take the larger time, not the sum": lambda **g: _predicted(**g, total=sum),
        "fusion saves launches too: three kernels to one": lambda **g: _predicted(**g, kernels=(3, 3)),
        "fusion saves bytes too: 7 passes to 3": lambda **g: _predicted(**g, passes=(7, 7)),
        "there are 7 passes before: layer norm 2, ReLU 2, addition 3": lambda **g: _predicted(**g, passes=(6, 3)),
        "there are 3 passes after: x and the residual are read, the result is written": (
            lambda **g: _predicted(**g, passes=(7, 2))
        ),
        "that is the time after over the time before; a speed-up is the inverse": lambda **g: 1 / _predicted(**g),
    },
)


# (e) verdict ---------------------------------------------------------------------------------------------------------

verdict = TrueFalse(
    "verdict",
    {
        "a": (
            "A version with fewer kernels takes less wall time.",
            False,
            "at 1 row, torch.compile runs one kernel and takes longer than eager with three",
        ),
        "b": (
            "A CUDA graph of the eager version runs fewer kernels on the GPU.",
            False,
            "it runs the same kernels; what it saves is the host's work for each launch",
        ),
        "c": (
            "At 65,536 rows a CUDA graph around the eager version changes little.",
            True,
            "the GPU is busy all the time, so the host is ahead anyway",
        ),
        "d": (
            "At 1 row, what costs time is the traffic to main memory.",
            False,
            "a few kilobytes take nanoseconds; the launches take microseconds",
        ),
        "e": (
            "Fusing saves more seconds per call at 65,536 rows than any version saves at 1 row.",
            True,
            "at 1 row there are only some tens of microseconds to save",
        ),
        "f": (
            "GPU time between two events shows the whole cost of a launch-bound call.",
            False,
            "the host's work before and between launches is on the wall clock",
        ),
        "g": (
            "The mode reduce-overhead can lose although it uses a CUDA graph.",
            True,
            "the graph reads fixed addresses, so inputs that arrive elsewhere are copied first",
        ),
        "h": (
            "A measured speed-up above 7/3 at a large size must be a mistake.",
            False,
            "7/3 is the ratio of the bytes; the fused kernel may also move its bytes at a higher rate",
        ),
    },
)
