"""Run experiments on the GPU of this machine and keep every row that is proven and plausible."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from .. import hardware, kernels, provenance, records, timing
from ..ledger import Demand
from ..roofline import Roofline
from .base import Experiment, Gpu
from .counters import count
from .suite import EXPERIMENTS, OPERANDS

# Main memory's roof is asked only where a kernel moves this many times L2: below, its reads may hit the cache.
BEYOND_L2 = 4


def named(names: Iterable[str]) -> list[Experiment]:
    """Return the experiments of these names, all of them for none; raise RecordError with the choices."""
    names = list(names) or list(EXPERIMENTS)
    for name in names:
        if name not in EXPERIMENTS:
            raise records.RecordError(f"unknown experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] for name in names]


def device_id(gpu_name: str) -> str:
    """Return the id of the device that a driver calls `gpu_name`, or a new id made of the name.

    >>> device_id("NVIDIA H200"), device_id("NVIDIA GeForce RTX 3060")
    ('h200-sxm', 'nvidia-geforce-rtx-3060')
    """
    for device in hardware.devices().values():
        if gpu_name in device.reported_as:
            return device.id
    return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")


class OutOfMemory(Exception):
    """Raised inside a campaign when a case does not fit on the card."""


class Campaign:
    """Runs cases one by one; each finished case is on disk before the next begins.

    Rows that are there are not measured, unless they are stale or `again` is set: then each stays until its new row
    takes its place.
    `rows` are those that this campaign has measured.
    """

    def __init__(
        self,
        experiments: Iterable[Experiment],
        *,
        root: Path,
        quick: bool = False,
        counters: bool = False,
        again: bool = False,
        say: Callable[[str], None] = print,
        cancelled: Callable[[], bool] = lambda: False,
    ):
        timing.require_gpu()
        self.gpu, self.run = Gpu.here(), provenance.collect() | {"operands": OPERANDS}
        self.device = device_id(self.run["gpu"])
        self.root, self.counters, self.again, self.say, self.cancelled = root, counters, again, say, cancelled
        self.quick = quick
        self.plan = [(each, case) for each in experiments for case in each.cases(self.gpu, quick)]
        self.failed, self.rows = 0, []

    def __len__(self) -> int:
        return len(self.plan)

    def steps(self):
        """Yield (experiment name, case) after each case; stop early only by Cancelled or KeyboardInterrupt."""
        import torch

        record, current = None, None
        for experiment, case in self.plan:
            if experiment.name != current:
                current = experiment.name
                record = self._open(experiment)
            try:
                self._case(experiment, case, record)
            except OutOfMemory:
                missing = self._missing(experiment, case, record)
                self._skip(record, case, missing, "out of memory")
            torch.cuda.empty_cache()
            record.save(self.root)
            yield experiment.name, case

    def _open(self, experiment: Experiment) -> records.Record:
        """Return the record to go on with, and say how many of its rows are measured again."""
        record = records.find(self.device, experiment.name, self.root) or records.Record(self.device, experiment.name)
        planned = [case for each, case in self.plan if each.name == experiment.name]
        record.skipped = [skip for skip in record.skipped if skip["case"] not in planned]
        there = [row for row in record.rows if row["case"] in planned and row["version"] in self._wanted(experiment)]
        if stale := sum(map(is_stale, there)):
            self.say(f"{experiment.name}: {stale} rows are of an older kernel and are measured again")
        return record

    def _wanted(self, experiment: Experiment) -> list[str]:
        """Return the versions that are to be there of each planned case."""
        return [name for name in experiment.versions if not (self.quick and name in experiment.not_quick)]

    def _missing(self, experiment: Experiment, case: dict, record: records.Record) -> tuple[str, ...]:
        """Return the versions of a case that are to be measured."""
        fresh = [row["version"] for row in record.rows if row["case"] == case and not is_stale(row)]
        return tuple(name for name in self._wanted(experiment) if self.again or name not in fresh)

    def _skip(self, record, case, versions, reason: str) -> None:
        record.skipped.append({"case": case, "versions": list(versions), "reason": reason})
        self.say(f"{record.experiment} {case}: skipped {', '.join(versions)}: {reason}")

    def _case(self, experiment: Experiment, case: dict, record: records.Record) -> None:
        missing = self._missing(experiment, case, record)
        if not missing:
            return
        if reason := experiment.needs(self.gpu, case):
            self._skip(record, case, missing, reason)
            return
        calls = self._attempt(record, case, missing, lambda: experiment.prepare(case, missing))
        if calls and (without := [name for name in missing if name not in calls]):
            self._skip(record, case, without, "not for this case, not on this GPU, or not installed")
        proofs = {name: self._attempt(record, case, (name,), call.prove) for name, call in (calls or {}).items()}
        calls = {name: call for name, call in (calls or {}).items() if proofs[name]}
        if not calls:
            return
        measured = self._attempt(record, case, tuple(calls), lambda: self._time(experiment, case, calls))
        if not measured:
            return
        launches, timings, observed = measured
        counted = {}
        if self.counters and experiment.counted(case):
            settings = {key: value for call in calls.values() for key, value in call.settings.items()}
            counted = count(experiment.name, case | settings, calls)
        for name, call in calls.items():
            kernel = call.kernel and {"module": call.kernel, "hash": kernels.fingerprint(call.kernel)}
            # A run joins the record with its first row, so that rows kept from before never seem to be of it.
            if self.run not in record.runs:
                record.runs.append(self.run)
            row = {"case": case, "version": name, "run": record.runs.index(self.run), "kernel": kernel}
            row |= {"settings": call.settings} if call.settings else {}
            row |= timings[name].asdict() | {"launches": launches[name], "observed": observed[name]}
            if name in counted:
                row["counted"] = counted[name]
            if experiment.traced(case):
                trace = self._attempt(record, case, (name,), partial(timing.timeline, call.run))
                row |= {"timeline": _beginning(trace)} if trace else {}  # the timings are right without it
            row["check"] = {"max_error": proofs[name].max_error, "tolerance": proofs[name].tolerance}
            try:
                asked = case | {"dtype": experiment.dtype(case, name)}
                refuse_above_roof(self.device, self.gpu, experiment.demand(case, name), asked, timings[name].time_s)
                others = [each for each in record.rows if (each["case"], each["version"]) != (case, name)]
                record.append(row)
                record.rows = [*others, record.rows[-1]]
                self.rows.append(record.rows[-1])
            except records.RecordError as error:
                self._fail(record, case, (name,), error)

    def _time(self, experiment: Experiment, case: dict, calls: dict) -> tuple[dict, dict, dict]:
        """Return the launches and the timing of each call, and what was observed meanwhile."""
        runs = {name: call.run for name, call in calls.items()}
        if experiment.once:
            return dict.fromkeys(calls, 0), timing.once(runs), dict.fromkeys(calls, {})
        launches = {name: timing.count_launches(run) for name, run in runs.items()}
        if case.get("sustained"):
            return launches, *timing.sustained(runs, cancelled=self.cancelled, observe=provenance.observe)
        timings, observed = timing.measure(
            runs,
            cache=case.get("cache", experiment.cache),
            budget_s=experiment.budget_s,
            settle_s=experiment.settle_s,
            launches=sum(launches.values()),
            cancelled=self.cancelled,
            observe=provenance.observe,
        )
        return launches, timings, dict.fromkeys(calls, observed)

    def _attempt(self, record, case, versions, step: Callable[[], object]):
        """Return what `step` returns, or None after noting why it failed; running out of memory ends the case."""
        try:
            return step()
        except (timing.Cancelled, OutOfMemory):
            raise
        except Exception as error:
            # torch, cuBLAS and Triton each have an error of their own for it.
            if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
                raise OutOfMemory from error
            self._fail(record, case, versions, error)
            return None

    def _fail(self, record, case, versions, error: Exception) -> None:
        self.failed += 1
        where = traceback.extract_tb(error.__traceback__)[-1:] if error.__traceback__ else []
        place = f" ({Path(where[0].filename).name}:{where[0].lineno})" if where else ""
        first = str(error).strip().splitlines()[:1]
        self._skip(record, case, versions, f"failed: {type(error).__name__}: {first[0] if first else ''}{place}")


def _beginning(timeline: list[tuple[str, float, float]], most: int = 80) -> list[list]:
    """Return the first kernels of a timeline with short names and times in whole nanoseconds."""
    return [
        [
            re.sub(r"^void |\(anonymous namespace\)::|<.*|\((?!anonymous).*", "", name)[:60],
            round(begin_s, 9),
            round(time_s, 9),
        ]
        for name, begin_s, time_s in timeline[:most]
    ]


def beyond_l2(demand: Demand, gpu: Gpu) -> bool:
    """Return whether each kernel moves so much that L2 cannot hold what the one before left: then its roof holds."""
    return demand.traffic["hbm"] / max(1, demand.launches) >= BEYOND_L2 * gpu.l2_bytes


def refuse_above_roof(device: str, gpu: Gpu, demand: Demand, case: dict, time_s: float) -> None:
    """Raise RecordError for a time that the device's roofs on paper do not allow, with the likely cause."""
    known = hardware.devices().get(device)
    dtype = case.get("dtype", "bf16")
    if known is None or dtype not in known.dtypes("tensor"):
        return  # no roof on paper to compare with
    for roof in Roofline.of(known, dtype).roofs:
        if roof.kind == "memory" and not beyond_l2(demand, gpu):
            continue
        if time_s < (least_s := roof.time_s(demand)):
            cause = {
                "memory": "the data came from a cache, was not all touched, or bytes were counted twice",
                "compute": "work was left out, FLOPs were counted twice, or the clock exceeded that of the peak",
            }[roof.kind]
            raise records.RecordError(
                f"{demand.title}: {time_s:.3g} s lies above the roof {roof}, which allows no less than "
                f"{least_s:.3g} s; likely cause: {cause}"
            )


def is_stale(row: dict) -> bool:
    """Return whether a row was measured with another source of its kernel module than the one here."""
    kernel = row["kernel"]
    return bool(kernel) and kernels.fingerprint(kernel["module"]) != kernel["hash"]


def require_fresh(record: records.Record, root: Path = records.BOOK) -> records.Record:
    """Return `record`, or raise StaleRecord with the command that measures it again under `root`."""
    stale = sorted({row["kernel"]["module"] for row in record.rows if is_stale(row)})
    if stale:
        out = " --out src/rooflab/data/measurements" if root == records.BOOK else ""
        raise records.StaleRecord(
            f"{record.device}/{record.experiment} was measured with another {', '.join(stale)}; "
            f"run: rooflab measure {record.experiment}{out}"
        )
    return record
