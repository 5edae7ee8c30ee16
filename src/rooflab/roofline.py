"""A workload on a device: which roof binds, how fast it can be at most, where the ridge lies.

A roofline is any number of roofs: compute roofs by unit, memory roofs by level, and a launch floor.
Each roof gives a least time; the bound is the longest of them and carries the name of the roof that gives it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

from . import ledger, records
from .hardware import Device
from .ledger import Demand
from .units import si

COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"
_UNIT = {COMPUTE: "FLOP/s", MEMORY: "B/s", LAUNCH: "s per launch"}


class RooflineError(ValueError):
    """Raised when a roof is missing for what is asked, or has an impossible rate."""


@dataclass(frozen=True)
class Roof:
    """One limit: `rate` in FLOP/s (compute), byte/s (memory) or s per launch (launch).

    `key` is what a demand counts against it: a compute unit, a memory level, or "launch".
    `basis` is "paper" for a vendor's figure and "measured" for one that was observed.
    """

    kind: str
    key: str
    rate: float
    label: str
    basis: str = "paper"

    def __post_init__(self):
        if self.kind not in _UNIT:
            raise RooflineError(f"unknown kind of roof {self.kind!r}; choose from {', '.join(_UNIT)}")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise RooflineError(
                f"{self.label}: rate is {self.rate}; it must be positive and finite ({_UNIT[self.kind]})"
            )

    def time_s(self, demand: Demand) -> float:
        """Return the least time that this roof allows `demand`; 0 where the demand does not touch it.

        >>> Roof("memory", "hbm", 4e12, "HBM").time_s(Demand("copy", {"vector": 0}, {"hbm": 8e9}))
        0.002
        """
        if self.kind == COMPUTE:
            return ledger.COMPUTE_TIME.numpy(demand.work.get(self.key, 0), self.rate)
        if self.kind == MEMORY:
            return ledger.MEMORY_TIME.numpy(demand.traffic.get(self.key, 0), self.rate)
        return ledger.LAUNCH_TIME.numpy(demand.launches, self.rate)

    def __str__(self) -> str:
        return f"{self.label} ({si(self.rate, _UNIT[self.kind])})"


def device_roofs(device: Device, dtype: str) -> list[Roof]:
    """Return the roofs on paper: matrix units in `dtype`, vector units in fp32 where stated, main memory."""
    peak = device.peak_flop_per_s(dtype, "tensor")
    roofs = [Roof(COMPUTE, "tensor", peak, f"{dtype} matrix peak")]
    if "fp32" in device.dtypes("vector"):
        roofs.append(Roof(COMPUTE, "vector", device.peak_flop_per_s("fp32", "vector"), "fp32 vector peak"))
    technology = next(memory.technology for memory in device.memories if memory.level == "hbm") or "memory"
    return [*roofs, Roof(MEMORY, "hbm", device.bytes_per_s(), f"{technology} bandwidth")]


@dataclass(frozen=True)
class Ceiling:
    """What was measured: `rate` in FLOP/s, byte/s or s per launch, and under which conditions."""

    rate: float
    conditions: str


@functools.cache
def ceilings(device_id: str, root: Path = records.BOOK) -> dict[str, Ceiling]:
    """Return the best measured rates of a device by name, from its records; empty where there are none.

    "copy", "read" and "write" touch at least four times L2.
    "copy in L2" and its like are the slope of time against bytes up to 0.6 of L2: a call also costs a few microseconds
    whatever it moves, which the slope leaves out.
    "gemm bf16" and its like are the fastest library products, "launch eager" and "launch graph" the times per kernel.
    """
    found: dict[str, Ceiling] = {}

    def offer(name: str, rate: float, conditions: str, better=max) -> None:
        if name not in found or better(rate, found[name].rate) == rate:
            found[name] = Ceiling(rate, conditions)

    inside: dict[str, list[tuple[float, float]]] = {}
    for row in _rows(device_id, "bandwidth", root):
        op, size, l2 = row["case"]["op"], row["case"]["bytes"], row["l2_bytes"]
        touched = size * (2 if op == "copy" else 1)
        if touched >= 4 * l2:
            offer(op, touched / row["time_s"], f"{op} of {size / 2**20:g} MiB, {row['version']}")
        elif touched <= 0.6 * l2 and row["version"] == "triton":
            inside.setdefault(op, []).append((touched, row["time_s"]))
    for op, samples in inside.items():
        (fewest, shortest), (most, longest) = min(samples), max(samples)
        if longest > shortest:
            offer(f"{op} in L2", (most - fewest) / (longest - shortest), f"{op}, slope up to {most / 2**20:g} MiB")
    for row in _rows(device_id, "gemm", root):
        shape = {name: row["case"][name] for name in "MNK"}
        rate = ledger.WORKLOADS["gemm"].flop(**shape) / row["time_s"]
        offer(f"gemm {row['case']['dtype']}", rate, f"cuBLAS, n = {shape['M']}")
    for row in _rows(device_id, "launch", root):
        conditions = f"{row['case']['kernels']} one-element adds"
        offer(f"launch {row['version']}", row["wall_s"] / row["case"]["kernels"], conditions, min)
    return found


def _rows(device_id: str, experiment: str, root: Path) -> list[dict]:
    record = records.find(device_id, experiment, root)
    return [row | {"l2_bytes": record.runs[row["run"]]["l2_bytes"]} for row in record.rows] if record else []


# Which ceiling is whose: a copy counts bytes read and bytes written.
_LEVELS = {"hbm": ("copy", "measured copy"), "l2": ("copy in L2", "measured copy in L2")}


def measured_roofs(device: Device, dtype: str) -> dict[tuple[str, str], Roof]:
    """Return the measured ceilings by (kind, key), from the book's records or else from the reader's own.

    Raises RooflineError unless a GEMM and a copy were measured.
    """
    found = (ceilings(device.id, root) for _, root in records.shown_roots())
    measured = next((each for each in found if {f"gemm {dtype}", "copy"} <= each.keys()), None)
    if measured is None:
        have = [id for id in records.devices_with_records() if {f"gemm {dtype}", "copy"} <= ceilings(id).keys()]
        # What the book has nowhere, the experiments do not measure.
        remedy = "; on that GPU run: rooflab measure gemm bandwidth" if have else ""
        raise RooflineError(
            f"no measured ceilings for {device.title} in {dtype}; "
            f"the book has them for {', '.join(have) or 'no device'}{remedy}"
        )
    roofs = [Roof(COMPUTE, "tensor", measured[f"gemm {dtype}"].rate, f"measured {dtype} GEMM", "measured")]
    for level, (name, label) in _LEVELS.items():
        if name in measured:
            roofs.append(Roof(MEMORY, level, measured[name].rate, label, "measured"))
    return {(roof.kind, roof.key): roof for roof in roofs}


def launch_floor(device: Device, mode: str) -> Roof:
    """Return the measured launch floor, "eager" or "graph"; raise RooflineError where nobody measured it."""
    if f"launch {mode}" not in (measured := ceilings(device.id)):
        have = ", ".join(name for name in measured if name.startswith("launch")) or "none"
        raise RooflineError(f"no measured floor 'launch {mode}' for {device.title}; it has {have}")
    return Roof(LAUNCH, "launch", measured[f"launch {mode}"].rate, f"launch, {mode}", "measured")


@dataclass(frozen=True)
class Bound:
    """What a roofline says of a demand: the least time by roof, and the roof that gives the longest."""

    demand: Demand
    time_by_roof: dict[Roof, float]

    @property
    def roof(self) -> Roof:
        """The roof that binds."""
        return max(self.time_by_roof, key=self.time_by_roof.get)

    @property
    def time_s(self) -> float:
        """The least time in seconds; no implementation on these roofs can be faster."""
        return self.time_by_roof[self.roof]

    @property
    def attainable_flop_per_s(self) -> float:
        """The greatest rate in FLOP/s."""
        return self.demand.flop / self.time_s

    def __str__(self) -> str:
        return (
            f"{self.demand.title}: at most {si(self.attainable_flop_per_s, 'FLOP/s')}, "
            f"at least {si(self.time_s, 's')}, bound by {self.roof}"
        )


@dataclass(frozen=True)
class Roofline:
    """The roofs that hold together for one device, dtype and basis."""

    title: str
    roofs: tuple[Roof, ...]

    @classmethod
    def of(cls, device: Device, dtype: str, *, measured: bool = False, launch: str | None = None) -> Roofline:
        """Return the roofs of `device` for matrix work in `dtype`; vector work runs in fp32.

        `measured` puts measured ceilings in place of those on paper; `launch` adds the floor "eager" or "graph".

        >>> from rooflab.hardware import device
        >>> print(Roofline.of(device("h100-sxm"), "bf16").bound(ledger.WORKLOADS["gemv"].demand(M=4096, K=4096, b=2)))
        GEMV: at most 3.348 TFLOP/s, at least 10.02 µs, bound by HBM3 bandwidth (3.35 TB/s)
        """
        roofs = device_roofs(device, dtype)
        if measured:
            better = measured_roofs(device, dtype)
            # What nobody measured keeps its figure on paper.
            roofs = [better.pop((roof.kind, roof.key), roof) for roof in roofs] + list(better.values())
        if launch:
            roofs.append(launch_floor(device, launch))
        return cls(f"{device.title}, {dtype}", tuple(roofs))

    def _roof(self, kind: str, key: str) -> Roof:
        for roof in self.roofs:
            if (roof.kind, roof.key) == (kind, key):
                return roof
        has = ", ".join(roof.key for roof in self.roofs if roof.kind == kind) or "none"
        raise RooflineError(f"{self.title} has no {kind} roof {key!r}; it has {has}")

    def bound(self, demand: Demand) -> Bound:
        """Return the bound on `demand`. Raises RooflineError where a compute unit or main memory has no roof."""
        for unit, amount in demand.work.items():
            if amount:
                self._roof(COMPUTE, unit)
        self._roof(MEMORY, "hbm")
        return Bound(demand, {roof: roof.time_s(demand) for roof in self.roofs})

    def ridge_flop_per_byte(self, unit: str = "tensor", level: str = "hbm") -> float:
        """Return the least intensity in FLOP/byte at which `level` can feed `unit` at its peak.

        >>> from rooflab.hardware import device
        >>> round(Roofline.of(device("h100-sxm"), "bf16").ridge_flop_per_byte())
        295
        """
        return ledger.RIDGE(P=self._roof(COMPUTE, unit).rate, beta=self._roof(MEMORY, level).rate)

    def attainable_flop_per_s(self, intensity_flop_per_byte, unit: str = "tensor", level: str = "hbm"):
        """Return the attainable FLOP/s at an intensity (or an array of them) under one compute and one memory roof."""
        compute, memory = self._roof(COMPUTE, unit).rate, self._roof(MEMORY, level).rate
        return ledger.ATTAINABLE(P=compute, beta=memory, I=intensity_flop_per_byte)
