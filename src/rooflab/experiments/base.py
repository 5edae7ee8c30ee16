"""What an experiment is: cases, versions that rival each other, a proof that each is right, and its demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..ledger import Demand


@dataclass(frozen=True)
class Gpu:
    """What decides which cases fit: memory and L2 in byte, compute capability as major * 10 + minor."""

    memory_bytes: int
    l2_bytes: int
    capability: int

    @classmethod
    def here(cls) -> Gpu:
        """Return the GPU of this machine; needs torch and a CUDA device."""
        import torch

        properties = torch.cuda.get_device_properties(0)
        capability = properties.major * 10 + properties.minor
        return cls(properties.total_memory, properties.L2_cache_size, capability)


@dataclass(frozen=True)
class Call:
    """One version of a case: `run` is timed; `prove` runs it on poisoned outputs and returns its check.

    `kernel` is the module of this package whose source the version depends on. `settings` are what was chosen by
    timing or counted in the machine code: they are kept in the row, and join the case where it is prepared again to
    read the GPU's counters.
    """

    run: Callable[[], object]
    prove: Callable[[], object]
    kernel: str | None = None
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A question that is answered by timing rival versions over cases.

    `cases(gpu, quick)` yields dictionaries of plain values; `prepare(case, versions)` returns the calls by version.
    `demand(case, version)` is the ledger's count, for the roofs and for pages without a GPU.
    `cache` says what the rows are: "cold" (L2 filled with other data before each call) or "warm"; a case may say so.
    `not_quick` names versions that are left out where only a few cases are measured.
    `settle_s` is the least time to run before timing: a card that draws much power lowers its clock only then.
    `counted(case)` says whether the GPU's own counters are read when that is asked for and permitted.
    `traced(case)` says whether the row keeps the timeline of a call. With `once`, a call is what is slow the first
    time, such as compiling: it is timed by the host's clock and not warmed up.
    `needs(gpu, case)` returns why a case cannot run here, or "".
    `dtype(case, version)` names the format whose matrix peak is the version's roof.
    A case with `sustained` is timed while each version runs alone for half a second, see `timing.sustained`.
    """

    name: str
    title: str
    versions: tuple[str, ...]
    cases: Callable[[Gpu, bool], Iterable[dict]]
    prepare: Callable[[dict, tuple[str, ...]], dict[str, Call]]
    demand: Callable[[dict, str], Demand]
    cache: str = "cold"
    needs: Callable[[Gpu, dict], str] = lambda gpu, case: ""
    dtype: Callable[[dict, str], str] = lambda case, version: case.get("dtype", "bf16")
    counted: Callable[[dict], bool] = lambda case: False
    traced: Callable[[dict], bool] = lambda case: False
    once: bool = False
    not_quick: tuple[str, ...] = ()
    budget_s: float = 0.15
    settle_s: float = 0.0
