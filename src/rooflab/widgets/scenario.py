"""What a slider page shows: parameters in exact steps, workloads as dots, recorded points, devices.

A scenario is data. A new slider page is a new scenario; the front end stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .. import ledger
from ..hardware import Device, devices
from ..roofline import COMPUTE, MEMORY, Roof, ceilings, device_roofs, measured_roofs
from ..units import DTYPE_BYTES


class ScenarioError(ValueError):
    """Raised when a scenario's parts do not fit together."""


@dataclass(frozen=True)
class Slider:
    """One parameter: a name, the exact values it steps through, and the one it starts at.

    With `names` it is a menu of these texts. `fields` are numbers that come with each value, which a dot reads as
    "slider.field"; a field that is named as another slider moves that slider when the value is chosen.
    """

    name: str
    label: str
    values: tuple[float, ...]
    start: float
    unit: str = ""
    names: tuple[str, ...] = ()
    fields: tuple[dict[str, float], ...] = ()

    def __post_init__(self):
        for what, given in (("names", self.names), ("fields", self.fields)):
            if given and len(given) != len(self.values):
                raise ScenarioError(f"slider {self.name}: {len(given)} {what} for {len(self.values)} values")
        if self.start not in self.values:
            raise ScenarioError(f"slider {self.name}: start {self.start} is not one of its values {self.values}")
        possible = all(math.isfinite(value) and value > 0 for value in self.values)
        if not possible or list(self.values) != sorted(set(self.values)):
            raise ScenarioError(f"slider {self.name}: values must be positive, finite and rising, got {self.values}")


def resolve(source: str | float, numbers: dict[str, float]) -> float:
    """Return the number that a source stands for.

    >>> resolve("model.h/g", {"model.h": 32, "g": 8}), resolve("g", {"g": 8}), resolve(2, {})
    (4, 8, 2)
    """
    if not isinstance(source, str):
        return source
    first, *rest = (numbers[part] for part in source.split("/"))
    for divisor in rest:
        whole = first / divisor
        first = int(whole) if whole == int(whole) else whole
    return first


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from `low` to `high`, both included.

    >>> powers_of_two(1, 8)
    (1, 2, 4, 8)
    """
    return tuple(2**i for i in range(low.bit_length() - 1, high.bit_length()))


@dataclass(frozen=True)
class Dot:
    """One workload of the ledger; `values` maps each symbol to a source.

    A source is a number, a slider's name, "slider.field", "dtype" (bytes of the number format), or a quotient of two.
    """

    label: str
    workload: str
    values: dict[str, str | float]


@dataclass(frozen=True)
class Point:
    """One recorded measurement: intensity in FLOP/byte, rate in FLOP/s, and where it comes from.

    `when` names the slider values that it belongs to; it is shown only while the sliders stand there.
    `dot` is the index of the scenario's dot that it measures, where there is one: pairs then compare measured times.
    """

    label: str
    device: str
    dtype: str
    intensity: float
    flop_per_s: float
    source: str
    when: dict[str, float] = field(default_factory=dict)
    dot: int | None = None


@dataclass(frozen=True)
class Total:
    """Operations that run one after another: `terms` are (index of a dot, source of how many times).

    `new` is the source of the new tokens of a sequence, `batch` that of the sequences.
    """

    label: str
    terms: tuple[tuple[int, str | float], ...]
    new: str | float
    batch: str | float


@dataclass(frozen=True)
class Scenario:
    """A whole explorer page; `state()` gives the front end its JSON, `demands()` gives Python the same numbers.

    `pairs` are dots whose time bounds are compared: the first one's time over the second one's.
    `totals` are sums of dots' time bounds; `crossings` name a dot and the slider that takes it over the ridge.
    `launch` names the slider that holds the seconds per launch; the launch floor then starts as set by it.
    With `serial`, the page also shows what the compute units take one after another.
    """

    id: str
    title: str
    dots: tuple[Dot, ...]
    sliders: tuple[Slider, ...]
    device: str = "h100-sxm"
    dtype: str = "bf16"
    points: tuple[Point, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    totals: tuple[Total, ...] = ()
    crossings: tuple[tuple[int, str], ...] = ()
    launch: str = ""
    serial: bool = False
    devices: tuple[Device, ...] = field(default_factory=lambda: tuple(devices().values()))
    x_range: tuple[float, float] = (0.1, 1e5)
    y_range: tuple[float, float] = (1e8, 1e16)

    def __post_init__(self):
        names = {slider.name for slider in self.sliders}
        for dot in self.dots:
            if dot.workload not in ledger.WORKLOADS:
                choices = ", ".join(ledger.WORKLOADS)
                raise ScenarioError(f"{dot.label}: unknown workload {dot.workload!r}; choose from {choices}")
            needed = {s.name for f in ledger.WORKLOADS[dot.workload].formulas for s in f.symbols}
            for symbol, source in dot.values.items():
                self._check(source, f"{dot.label}: {symbol}", names)
            if missing := needed - set(dot.values):
                raise ScenarioError(f"{dot.label}: no value for {', '.join(sorted(missing))}")
        named = [index for pair in self.pairs for index in pair] + [index for index, _ in self.crossings]
        named += [index for total in self.totals for index, _ in total.terms]
        if any(not 0 <= index < len(self.dots) for index in named):
            raise ScenarioError(f"pairs, totals or crossings name a dot that is not there; there are {len(self.dots)}")
        for total in self.totals:
            for source in (total.new, total.batch, *(times for _, times in total.terms)):
                self._check(source, total.label, names)
        for _, slider in self.crossings:
            self._check(slider, "crossings", names)
        if self.launch and self.launch not in names:
            raise ScenarioError(f"launch comes from unknown slider {self.launch!r}; sliders: {names}")
        if self.device not in {each.id for each in self.devices}:
            raise ScenarioError(f"unknown device {self.device!r}; choose from {', '.join(d.id for d in self.devices)}")

    def _check(self, source: str | float, what: str, names: set[str]) -> None:
        fields = {f"{slider.name}.{field}" for slider in self.sliders for each in slider.fields for field in each}
        for part in source.split("/") if isinstance(source, str) else ():
            if part not in names | fields | {"dtype"}:
                raise ScenarioError(f"{what} comes from unknown slider {part!r}; sliders: {names}")

    def sources(self, dtype: str, **parameters) -> dict:
        """Return the number of each source for slider values given by name (defaults where not given)."""
        values = self.defaults() | parameters
        found = {slider.name: values[slider.name] for slider in self.sliders} | {"dtype": DTYPE_BYTES[dtype]}
        for slider in self.sliders:
            if slider.fields:
                chosen = slider.fields[slider.values.index(values[slider.name])]
                found |= {f"{slider.name}.{field}": number for field, number in chosen.items()}
        return found

    @property
    def launch_modes(self) -> tuple[str, ...]:
        """The launch floors to choose from: measured ones, and where a slider holds one, "slider"."""
        return ("none", "eager", "graph") + (("slider",) if self.launch else ())

    def defaults(self) -> dict:
        """Return the state that the explorer starts in and resets to."""
        launch = "slider" if self.launch else "none"
        start = {"device": self.device, "dtype": self.dtype, "basis": "paper", "launch": launch, "active": 0}
        return start | {slider.name: slider.start for slider in self.sliders}

    def unit_roofs(self, device: Device) -> tuple[Roof, ...]:
        """Return the roof of the exponential units, on a page with a dot that counts exponentials."""
        counted = any("exp" in ledger.WORKLOADS[dot.workload].work for dot in self.dots)
        if not (counted and "fp32" in device.dtypes("exp")):
            return ()
        return (Roof(COMPUTE, "exp", device.peak_flop_per_s("fp32", "exp"), "exponential units"),)

    def demands(self, dtype: str, **parameters) -> list[ledger.Demand]:
        """Return one demand a dot, for slider values given by name (defaults where not given)."""
        sources = self.sources(dtype, **parameters)
        found = []
        for dot in self.dots:
            numbers = {symbol: resolve(source, sources) for symbol, source in dot.values.items()}
            found.append(ledger.WORKLOADS[dot.workload].demand(**numbers))
        return found

    def state(self) -> dict:
        """Return what the front end needs, as JSON-ready data; formulas are named, not carried."""
        shown = [_device_state(device, self.unit_roofs(device)) for device in self.devices]
        used = {name for device in shown for name in device["compute"]}
        names = {dot.workload for dot in self.dots}
        return {
            "id": self.id,
            "title": self.title,
            "devices": shown,
            "dtypes": {dtype: size for dtype, size in DTYPE_BYTES.items() if dtype in used},
            "sliders": [
                {"name": s.name, "label": s.label, "values": list(s.values), "unit": s.unit}
                | ({"names": list(s.names)} if s.names else {})
                | ({"fields": list(s.fields)} if s.fields else {})
                for s in self.sliders
            ],
            "dots": [{"label": dot.label, "workload": dot.workload, "values": dot.values} for dot in self.dots],
            "workloads": {name: _workload_state(ledger.WORKLOADS[name]) for name in sorted(names)},
            "pairs": [list(pair) for pair in self.pairs],
            "totals": [vars(total) | {"terms": [list(term) for term in total.terms]} for total in self.totals],
            "crossings": [list(each) for each in self.crossings],
            "launch": self.launch,
            "serial": self.serial,
            "x_range": list(self.x_range),
            "y_range": list(self.y_range),
            "defaults": self.defaults(),
        }


def _device_state(device: Device, unit_roofs: tuple[Roof, ...]) -> dict:
    """Return a device as the front end needs it: compute roofs by dtype, memory roofs, launch floors, on both bases."""
    compute: dict[str, list] = {}
    memory: dict[tuple, dict] = {}
    measured = ceilings(device.id)
    for dtype in device.dtypes("tensor"):
        roofs = [*device_roofs(device, dtype), *unit_roofs]
        if {f"gemm {dtype}", "copy"} <= measured.keys():
            roofs += measured_roofs(device, dtype).values()
        compute[dtype] = [vars(roof) for roof in roofs if roof.kind == COMPUTE]
        memory |= {(roof.key, roof.basis): vars(roof) for roof in roofs if roof.kind == MEMORY}
    launch = {mode: measured[f"launch {mode}"].rate for mode in ("eager", "graph") if f"launch {mode}" in measured}
    return {
        "id": device.id,
        "title": device.title,
        "compute": compute,
        "memory": list(memory.values()),
        "launch": launch,
    }


def _workload_state(workload: ledger.Workload) -> dict:
    return {
        "work": {unit: formula.name for unit, formula in workload.work.items()},
        "traffic": {level: formula.name for level, formula in workload.traffic.items()},
        "launches": workload.launches.name,
        "assumes": workload.assumes,
    }
