"""Time GPU work: events around the region, a cold or a warm cache, rivals in turn, medians with their spread.

torch is imported inside the functions, so that pages which only replay a record do not need it.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

# A median over fewer calls says little; more than this many add nothing that the spread does not show.
MIN_SAMPLES, MAX_SAMPLES = 11, 201
STABLE = 0.02
# A CUDA stream takes about a thousand launches before it makes the host wait. One round of long rivals may hold more:
# the host then goes on queueing while the GPU works.
QUEUE = 600
# The host's lead, over the time that it took to queue at its best: at times it is half as fast. No pause is longer than
# the second of these, so fewer calls are queued behind one.
LEAD, MAX_HOLD_S = 2.0, 0.1


class TimingError(RuntimeError):
    """Raised when there is nothing to time on, or a call cannot be timed."""


class Cancelled(Exception):
    """Raised inside a measurement when its `cancelled` callback says so."""


@dataclass(frozen=True)
class Timing:
    """How long one call takes: GPU time between events and host wall time, medians with 20th and 80th percentiles.

    `cache` is "cold" when L2 was filled with other data before each call, outside the timed region, else "warm".
    `wall_s` is the time per call when calls follow one another: launch-bound work is bound there.
    """

    time_s: float
    p20_s: float
    p80_s: float
    wall_s: float
    samples: int
    cache: str
    wall_p20_s: float | None = None
    wall_p80_s: float | None = None

    def asdict(self) -> dict:
        """Return the fields as a dictionary with six significant digits, for a record."""
        return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in asdict(self).items()}


def has_gpu() -> bool:
    """Return whether torch is here and sees a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def require_gpu() -> None:
    """Raise TimingError, with what to do, unless there is a CUDA device."""
    if not has_gpu():
        raise TimingError("no CUDA GPU here: replay a record instead, or run this on a machine with an NVIDIA GPU")


class ColdCache:
    """Replaces what L2 holds by reading a buffer of four times its size.

    Reading, not writing: lines that were written would have to leave the cache during the timed call.
    """

    def __init__(self):
        import torch

        size = torch.cuda.get_device_properties(0).L2_cache_size
        self._buffer = torch.zeros(max(size, 2**24), dtype=torch.float32, device="cuda")

    def __call__(self) -> None:
        self._buffer.sum()


def _hold(host_s: float) -> None:
    """Keep the GPU busy while the host queues work for `host_s`, so that no call waits for its launch."""
    import torch

    # _sleep counts clocks; 2 GHz is the fastest of current GPUs, so the pause is not shorter than asked.
    torch.cuda._sleep(int(min(LEAD * host_s + 20e-6, MAX_HOLD_S) * 2e9))


def measure(
    rivals: Mapping[str, Callable[[], object]],
    *,
    cache: str = "cold",
    budget_s: float = 0.3,
    settle_s: float = 0.0,
    launches: int = 1,
    cancelled: Callable[[], bool] = lambda: False,
    observe: Callable[[], dict] | None = None,
) -> tuple[dict[str, Timing], dict]:
    """Return the timing of each rival, taken in turn in one loop, and what `observe` saw while they ran.

    First all rivals run for `settle_s` and until their medians stand still; then each is timed once a round,
    so that a clock that drifts meets all of them alike. `budget_s` is the GPU time to spend on each rival,
    `launches` the kernels that one round of all of them queues.
    """
    import torch

    require_gpu()
    if cache not in ("cold", "warm"):
        raise TimingError(f"cache is {cache!r}; choose from cold, warm")
    flush = ColdCache() if cache == "cold" else (lambda: None)
    estimate_s, host_s = _warm_up(rivals, flush, budget_s, settle_s, cancelled)
    # A full launch queue would block the host inside a call: no more kernels than it surely holds. Where one round is
    # more, the host would fall behind in it: then it gets its lead before each call.
    turns_at_once = QUEUE // (launches + 2 * len(rivals))
    round_s = LEAD * sum(host_s.values())
    each_alone = turns_at_once < 1 or round_s > MAX_HOLD_S
    turns_at_once = int(max(1, min(16, turns_at_once, MAX_HOLD_S / max(round_s, 1e-9))))
    rounds = int(min(MAX_SAMPLES, max(MIN_SAMPLES, budget_s / max(statistics.mean(estimate_s.values()), 1e-6))))
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    seen: list[dict] = []
    for start in range(0, rounds, turns_at_once):
        if cancelled():
            raise Cancelled
        turns = min(turns_at_once, rounds - start)
        _hold(0 if each_alone else turns * sum(host_s.values()))
        pending = []
        for name, call in turns * list(rivals.items()):
            if each_alone:
                _hold(host_s[name])
            pending.append((name, _between_events(call, flush)))
        if observe:
            seen.append(observe())  # the queue is still running here
        torch.cuda.synchronize()
        for name, (begin, end) in pending:
            samples[name].append(begin.elapsed_time(end) * 1e-3)
    walls = _wall_times(rivals, estimate_s, budget_s)
    timings = {}
    for name, times in samples.items():
        low, *_, high = statistics.quantiles(times, n=5)
        wall_low, *_, wall_high = statistics.quantiles(walls[name], n=5)
        wall = statistics.median(walls[name])
        timings[name] = Timing(statistics.median(times), low, high, wall, len(times), cache, wall_low, wall_high)
    return timings, _middle(seen)


def once(rivals: Mapping[str, Callable[[], object]], rounds: int = 3) -> dict[str, Timing]:
    """Return the host's time from call to idle GPU, for what is slow the first time: no warm-up, medians of `rounds`.

    Each call must do the whole work again. The percentiles are the least and the greatest time.
    """
    import torch

    require_gpu()
    walls: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, call in rivals.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            walls[name].append(time.perf_counter() - begin)
    return {
        name: Timing(wall := statistics.median(each), min(each), max(each), wall, rounds, "warm", min(each), max(each))
        for name, each in walls.items()
    }


def sustained(
    rivals: Mapping[str, Callable[[], object]],
    *,
    stretch_s: float = 0.5,
    rounds: int = 3,
    cancelled: Callable[[], bool] = lambda: False,
    observe: Callable[[], dict] = dict,
) -> tuple[dict[str, Timing], dict[str, dict]]:
    """Return how long a call of each rival takes under its own load, and what `observe` saw of each.

    A rival runs for `stretch_s` without a pause, and the second half is timed: by then the card has the clock that
    this rival's power leaves it. The rivals take turns, a stretch each, in `rounds` rounds; the percentiles are the
    least and the greatest time of a round. For calls that are longer than their launch.
    """
    import torch

    require_gpu()
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    walls: dict[str, list[float]] = {name: [] for name in rivals}
    seen: dict[str, list[dict]] = {name: [] for name in rivals}
    for turn in range(rounds):
        for name in (*rivals,)[:: -1 if turn % 2 else 1]:
            if cancelled():
                raise Cancelled
            call = rivals[name]
            half = _calls_in(call, stretch_s / 2)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            started = time.perf_counter()
            for _ in range(half):
                call()
            begin.record()
            for _ in range(half):
                call()
            end.record()
            begin.synchronize()
            seen[name].append(observe())  # the second half is running
            end.synchronize()
            walls[name].append((time.perf_counter() - started) / (2 * half))
            samples[name].append(begin.elapsed_time(end) * 1e-3 / half)
    timings = {
        name: Timing(
            statistics.median(each), min(each), max(each), statistics.median(walls[name]), rounds, "warm",
            min(walls[name]), max(walls[name]),
        )
        for name, each in samples.items()
    }  # fmt: skip
    return timings, {name: _middle(each) for name, each in seen.items()}


def _calls_in(call, time_s: float) -> int:
    """Return how many calls, three of which are timed, take at least `time_s`."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(3):
        call()
    end.record()
    end.synchronize()
    return max(1, math.ceil(time_s / max(begin.elapsed_time(end) * 1e-3 / 3, 1e-6)))


def _between_events(call, flush):
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    flush()
    begin.record()
    call()
    end.record()
    return begin, end


def _warm_up(rivals, flush, budget_s, settle_s, cancelled) -> tuple[dict[str, float], dict[str, float]]:
    """Run all rivals for `settle_s` and until no median moves by 2 % between windows of five.

    Return the medians, and the host's time to queue a call of each.
    """
    import torch

    before: dict[str, float] = {}
    begun, host_s = time.monotonic(), {}
    deadline = begun + settle_s + max(1.0, 2 * budget_s * len(rivals))
    while True:
        if cancelled():
            raise Cancelled
        windows = {name: [] for name in rivals}
        _hold(5 * sum(host_s.values()))
        took = dict.fromkeys(rivals, 0.0)
        for _ in range(5):
            for name, call in rivals.items():
                queueing = time.perf_counter()
                windows[name].append(_between_events(call, flush))
                took[name] += (time.perf_counter() - queueing) / 5
        # The first round compiles; the shortest is what queueing takes.
        host_s = {name: min(each, host_s.get(name, each)) for name, each in took.items()}
        torch.cuda.synchronize()
        now = {
            name: statistics.median(begin.elapsed_time(end) * 1e-3 for begin, end in pairs)
            for name, pairs in windows.items()
        }
        stable = before and all(abs(now[name] - before[name]) <= STABLE * before[name] for name in rivals)
        settled = time.monotonic() > begun + settle_s
        if (stable and settled) or time.monotonic() > deadline:
            return now, host_s
        before = now


def _wall_times(rivals, estimate_s, budget_s) -> dict[str, list[float]]:
    """Return seven host times per call, each with calls back to back and one synchronisation at the end."""
    import torch

    walls: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(7):
        for name, call in rivals.items():
            least = 3 if estimate_s[name] < budget_s else 1  # a long call hides what it costs to synchronise
            repeats = int(min(100, max(least, 0.2 * budget_s / max(estimate_s[name], 1e-6))))
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
            walls[name].append((time.perf_counter() - begin) / repeats)
    return walls


def _middle(seen: list[dict]) -> dict:
    """Return the median of each number that was observed."""
    keys = {key for each in seen for key, value in each.items() if value is not None}
    return {key: statistics.median(each[key] for each in seen if each.get(key) is not None) for key in sorted(keys)}


def graphed(call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that replays `call` from a CUDA graph; it keeps `call`, and what that refers to, alive."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # capture needs lazy set-up, such as cuBLAS workspaces, to be over
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # cuBLAS keeps one workspace for all captures, in the memory of the first graph, and torch.compile's graphs free it.
    # Forgotten before and after, each graph gets one that lives as long as it does.
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph):
            call()
    finally:
        torch._C._cuda_clearCublasWorkspaces()

    def replay():
        graph.replay()

    replay.call = call  # the graph knows addresses only: what lies there must live as long as it
    return replay


def count_launches(call: Callable[[], object]) -> int:
    """Return how many kernels, copies and fills one call puts on the GPU, as torch.profiler sees them."""
    return len(timeline(call))


def timeline(call: Callable[[], object]) -> list[tuple[str, float, float]]:
    """Return (name, begin_s, time_s) of every kernel, copy and fill of one call, in the order in which they begin.

    The first begins at 0. The profiler slows launches, of graphs too; kernels hardly. Left in the process, its
    hooks in the driver (CUPTI) would slow the launches of all that is timed later, so they are taken out again: by a
    thread of the profiler, at the end of a later CUDA call, whichever it is. Here these calls find the GPU idle.
    Before CUDA 12.6 they stay: there, graphs could crash once the hooks came back (PyTorch's pull request 151124).
    """
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.torch_version import TorchVersion

    require_gpu()
    call()
    torch.cuda.synchronize()
    leave = str(int(TorchVersion(torch.version.cuda or "0") >= "12.6"))
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, TEARDOWN_CUPTI=leave):
        path = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            call()
            torch.cuda.synchronize()
        for _ in range(10):
            time.sleep(0.005)  # for the thread, which has to begin first
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    seen = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    seen.sort(key=lambda event: event["ts"])
    return [(event["name"], (event["ts"] - seen[0]["ts"]) * 1e-6, event["dur"] * 1e-6) for event in seen]


def seconds_left(done: int, total: int, elapsed_s: float) -> float:
    """Return the time that the rest takes at the pace so far, infinite before the first step is done.

    >>> seconds_left(2, 10, 5.0)
    20.0
    """
    return elapsed_s / done * (total - done) if done else math.inf
