"""Devices as data: peaks and memories as the vendors state them, each with its source and date.

The built-in devices are in `data/devices.toml`; `load_devices` reads your own file of the same form:

    [my-gpu]
    title = "My GPU"
    source = "vendor datasheet, page 2"
    date = "2026-11-29"
    peak = [{dtypes = ["bf16"], unit = "tensor", sparsity = "dense", flop_per_s = "989 TFLOP/s"}]
    memory = [{level = "hbm", bytes_per_s = "3.35 TB/s", capacity_bytes = "80 GB"}]

Quantities are text with a unit, which is checked; the keys of a row are the fields of its class below.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

from rooflab import ledger
from rooflab.units import UnitError, value_in

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4")
UNITS = ("tensor", "vector", "exp")


class HardwareError(ValueError):
    """Raised when a device file, a device or a request for a figure is wrong; its message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def _unknown(value: object, choices: Iterable[str]) -> str:
    """Return the part of a message that names a wrong value, the nearest right one and all right ones."""
    choices = list(choices)
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    return f"unknown {value!r}" + (f", did you mean {near[0]!r}?" if near else "") + f"; one of: {', '.join(choices)}"


def _text(value: object, where: str) -> str:
    if isinstance(value, datetime.date):
        return value.isoformat()
    if not isinstance(value, str):
        raise HardwareError(f"{where}: {value!r} is not text; write it in quotes")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise HardwareError(f'{where}: {value!r} is not a list of names; write one such as ["bf16", "fp16"]')
    return tuple(_text(item, where) for item in value)


def _quantity(unit: str, example: str, value: object, where: str) -> float:
    try:
        if not isinstance(value, str):
            raise UnitError(f"{value!r} has no unit")
        return value_in(value, unit)
    except UnitError as error:
        raise HardwareError(f'{where}: {error}; write it in {unit}, such as "{example}"') from None


def _count(value: object, where: str) -> int:
    if type(value) is not int:
        raise HardwareError(f"{where}: {value!r} is not a whole number; write a count such as 132")
    return value


def _given(unit: str, example: str, limit: float) -> dict:
    return {"read": partial(_quantity, unit, example), "unit": unit, "limit": limit}


# The limits only catch slips of the prefix; no device is near them.
_FLOP_PER_S = _given("FLOP/s", "989.4 TFLOP/s", 1e18)
_BYTES_PER_S = _given("byte/s", "3.35 TB/s", 1e15)
_COUNT = {"read": _count, "unit": "", "limit": 1e6}


def _check(row: object, where: str) -> None:
    """Raise HardwareError where a field of `row` is empty, not one of its choices, or outside its limits."""
    for spec in fields(row):
        value, at, rules = getattr(row, spec.name), f"{where}.{spec.name}", spec.metadata
        if spec.default in (None, "") and value == spec.default:
            continue
        if "choices" in rules:
            for item in value if spec.name == "dtypes" else (value,):
                if item not in rules["choices"]:
                    raise HardwareError(f"{at}: {_unknown(item, rules['choices'])}")
        elif "limit" in rules:
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise HardwareError(f"{at}: {value!r} is not positive and finite; write the vendor's figure")
            if value > rules["limit"]:
                raise HardwareError(f"{at}: {value:g} {rules['unit']} is impossible; check the prefix (T for G?)")
        elif isinstance(value, Derivation):
            _check(value, at)
        elif not (isinstance(value, str) and value.strip()):
            raise HardwareError(f"{at}: {value!r} says nothing; fill it in")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Where a figure comes from; strength is how the source was seen."""

    source: str
    date: str
    strength: str = field(default="unstated", metadata={"choices": ("primary", "transcription", "derived", "unstated")})
    note: str = ""


@dataclass(frozen=True)
class Derivation:
    """A peak as units (SMs, CUs) x FLOP per clock per unit x clock."""

    units: int = field(metadata=_COUNT)
    flop_per_clock_per_unit: int = field(metadata=_COUNT)
    clock_hz: float = field(metadata=_given("Hz", "1.83 GHz", 1e11))

    @property
    def flop_per_s(self) -> float:
        return self.units * self.flop_per_clock_per_unit * self.clock_hz


@dataclass(frozen=True, kw_only=True)
class Peak(Row):
    """A stated compute rate, for the dtypes that share it; `accumulate` of None is that of `accumulator`."""

    dtypes: tuple[str, ...] = field(metadata={"read": _texts, "choices": DTYPES})
    unit: str = field(metadata={"choices": UNITS})
    sparsity: str = field(metadata={"choices": ("dense", "2:4")})
    flop_per_s: float = field(metadata=_FLOP_PER_S)
    accumulate: str | None = field(default=None, metadata={"choices": ("fp64", "fp32", "fp16", "int32")})
    derive: Derivation | None = field(
        default=None, metadata={"read": lambda value, where: _read(Derivation, value, where)}
    )


@dataclass(frozen=True, kw_only=True)
class Memory(Row):
    """A level of the memory hierarchy; level "hbm" is the main memory, whatever its technology."""

    level: str = field(metadata={"choices": ("hbm", "l2", "l1")})
    technology: str = ""
    bytes_per_s: float | None = field(default=None, metadata=_BYTES_PER_S)
    capacity_bytes: float | None = field(default=None, metadata=_given("byte", "80 GB", 1e15))


def accumulator(dtype: str) -> str:
    """Return the type in which products of `dtype` are added unless a peak says otherwise.

    >>> accumulator("bf16"), accumulator("int8")
    ('fp32', 'int32')
    """
    return "int32" if dtype.startswith("int") else "fp64" if dtype == "fp64" else "fp32"


@dataclass(frozen=True, kw_only=True)
class Device:
    """One SKU with its stated peaks and memories; `reported_as` lists the names that drivers give it."""

    id: str
    title: str
    peaks: tuple[Peak, ...]
    memories: tuple[Memory, ...]
    reported_as: tuple[str, ...] = ()
    vendor: str = ""
    architecture: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.id):
            raise HardwareError(f"{self.id!r}: not a device id; use a-z, 0-9, '-' and '.', such as my-gpu")
        if not self.title.strip():
            raise HardwareError(f"{self.id}.title: {self.title!r} says nothing; fill it in")
        seen: set = set()
        for table, rows in (("peak", self.peaks), ("memory", self.memories)):
            for index, row in enumerate(rows):
                where = f"{self.id}.{table}[{index}]"
                _check(row, where)
                if table == "peak":
                    keys = [(d, row.unit, row.sparsity, row.accumulate or accumulator(d)) for d in row.dtypes]
                else:
                    keys = [(table, row.level)]
                for key in keys:
                    if key in seen:
                        raise HardwareError(f"{where}: duplicate of an earlier {' '.join(key)} row; keep one")
                    seen.add(key)
        if not self.dtypes():
            raise HardwareError(f"{self.id}.peak: missing; add a row with dtypes, unit, sparsity and flop_per_s")
        if not any(row.level == "hbm" and row.bytes_per_s for row in self.memories):
            raise HardwareError(f'{self.id}.memory: missing; add a row with level = "hbm" and bytes_per_s')

    @classmethod
    def simple(cls, id: str, title: str, *, peaks: Mapping[str, str], hbm: str, source: str, date: str) -> Device:
        """Return a device of dense peaks and one memory; fp32 and fp64 count as vector peaks.

        >>> gpu = Device.simple("x1", "X1", peaks={"bf16": "100 TFLOP/s"}, hbm="4 TB/s", source="a", date="2026")
        >>> gpu.ridge_flop_per_byte("bf16")
        25.0
        """
        peak = []
        for dtype, rate in peaks.items():
            unit = "vector" if dtype in ("fp32", "fp64") else "tensor"
            peak.append({"dtypes": [dtype], "unit": unit, "sparsity": "dense", "flop_per_s": rate})
        memory = [{"level": "hbm", "bytes_per_s": hbm}]
        return _device(id, {"title": title, "source": source, "date": date, "peak": peak, "memory": memory})

    def dtypes(self, unit: str | None = None) -> tuple[str, ...]:
        """Return the dtypes with a stated peak, on `unit` or on any.

        >>> device("h100-sxm").dtypes(), device("h100-sxm").dtypes("vector")
        (('bf16', 'fp16', 'fp8', 'fp32'), ('fp32',))
        """
        return tuple(dict.fromkeys(d for row in self.peaks if unit in (None, row.unit) for d in row.dtypes))

    def peak(self, dtype: str, unit: str | None = None, sparsity: str = "dense", accumulate: str | None = None) -> Peak:
        """Return the row that states a peak: of the tensor units where it is stated for them, else of the vector units.

        >>> device("h200-sxm").peak("fp8").source
        'NVIDIA H200 Tensor Core GPU datasheet, doc 3367400'
        """
        rows = [row for row in self.peaks if dtype in row.dtypes]
        if not rows:
            raise HardwareError(f"{self.id} has no {dtype!r} peak; it has: {', '.join(self.dtypes())}")
        usual = accumulator(dtype)
        for asked_unit in [unit] if unit else UNITS:
            for row in rows:
                asked = (asked_unit, sparsity, accumulate or usual)
                if (row.unit, row.sparsity, row.accumulate or usual) == asked:
                    return row
        have = "; ".join(f"{row.unit}, {row.sparsity}, {row.accumulate or usual} accumulate" for row in rows)
        wanted = f"{unit or 'tensor or vector'}, {sparsity}, {accumulate or usual} accumulate"
        raise HardwareError(f"{self.id} has no {dtype!r} peak for {wanted}; it has: {have}")

    def peak_flop_per_s(
        self, dtype: str, unit: str | None = None, sparsity: str = "dense", accumulate: str | None = None
    ) -> float:
        """Return the stated peak in FLOP/s, found as in `peak`.

        >>> device("h100-sxm").peak_flop_per_s("bf16"), device("h100-sxm").peak_flop_per_s("fp32")
        (989400000000000.0, 66900000000000.0)
        """
        return self.peak(dtype, unit, sparsity, accumulate).flop_per_s

    def _memory(self, level: str, name: str) -> float:
        have = {row.level: getattr(row, name) for row in self.memories if getattr(row, name) is not None}
        if level not in have:
            raise HardwareError(f"{self.id} states no {name} for {level!r}; it has: {', '.join(have) or 'none'}")
        return have[level]

    def bytes_per_s(self, level: str = "hbm") -> float:
        """Return the stated bandwidth in byte/s.

        >>> device("h100-sxm").bytes_per_s()
        3350000000000.0
        """
        return self._memory(level, "bytes_per_s")

    def capacity_bytes(self, level: str = "hbm") -> float:
        """Return the stated capacity in byte, with a vendor's GB as 10**9 byte.

        >>> device("h100-sxm").capacity_bytes(), device("tpu7x").capacity_bytes() / 2**30
        (80000000000.0, 192.0)
        """
        return self._memory(level, "capacity_bytes")

    def ridge_flop_per_byte(self, dtype: str, level: str = "hbm") -> float:
        """Return the least intensity, in FLOP/byte, at which the dense peak can be reached from `level`.

        >>> round(device("h100-sxm").ridge_flop_per_byte("bf16"), 1)
        295.3
        """
        return ledger.RIDGE(P=self.peak_flop_per_s(dtype), beta=self.bytes_per_s(level))


def _table(value: object, where: str, known: Iterable[str], required: Iterable[str]) -> dict:
    """Return `value`, a TOML table that has the keys of `required` and none outside `known`."""
    if not isinstance(value, dict):
        raise HardwareError(f"{where}: {value!r} is not a table; write {', '.join(required)} = ... in one")
    for key in value:
        if key not in known:
            raise HardwareError(f"{where}.{key}: {_unknown(key, known)}")
    for key in required:
        if key not in value:
            raise HardwareError(f"{where}.{key}: missing; add {key} = ... to this table")
    return value


def _read(cls: type, value: object, where: str, inherited: Mapping = MappingProxyType({})):
    """Return the `cls` that a TOML table states, its keys being the fields of `cls`."""
    specs = {spec.name: spec for spec in fields(cls)}
    required = [name for name, spec in specs.items() if spec.default is MISSING and name not in inherited]
    items = {**inherited, **_table(value, where, specs, required)}
    return cls(**{key: specs[key].metadata.get("read", _text)(item, f"{where}.{key}") for key, item in items.items()})


_TABLES = {"peak": Peak, "memory": Memory}
_PROVENANCE = ("source", "date", "strength")
_TEXTS = ("title", "vendor", "architecture", "note")


def _device(id: str, value: object, prefix: str = "") -> Device:
    """Return the device that a TOML table states; `prefix` names the file in messages."""
    where = prefix + id
    table = _table(value, where, (*_TEXTS, "reported_as", *_PROVENANCE, *_TABLES), ("title",))
    for name in _TABLES:
        if not isinstance(table.get(name, []), list):
            raise HardwareError(f"{where}.{name}: not a list of tables; write [[{id}.{name}]]")
    # Rows inherit the document of their device, so that a table copied from one datasheet names it once.
    inherited = {key: table[key] for key in _PROVENANCE if key in table}
    rows = {
        name: tuple(_read(cls, row, f"{where}.{name}[{i}]", inherited) for i, row in enumerate(table.get(name, [])))
        for name, cls in _TABLES.items()
    }
    texts = {key: _text(table[key], f"{where}.{key}") for key in _TEXTS if key in table}
    if "reported_as" in table:
        texts["reported_as"] = _texts(table["reported_as"], f"{where}.reported_as")
    try:
        return Device(id=id, peaks=rows["peak"], memories=rows["memory"], **texts)
    except HardwareError as error:
        raise HardwareError(f"{prefix}{error}") from None


def load_devices(path: str | Path) -> Mapping[str, Device]:
    """Return the devices of a TOML file, by id."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HardwareError(f"{path}: {error.strerror}; give the path of a TOML file of devices") from None
    except ValueError as error:
        raise HardwareError(f"{path}: not valid TOML: {error}; correct it there") from None
    if not tables:
        raise HardwareError(f"{path}: no devices; start one with a line such as [my-gpu]")
    return MappingProxyType({id: _device(id, table, f"{path}: ") for id, table in tables.items()})


@cache
def devices() -> Mapping[str, Device]:
    """Return the built-in devices, by id.

    >>> devices()["h200-sxm"].title
    'NVIDIA H200 SXM'
    """
    return load_devices(Path(__file__).parent / "data" / "devices.toml")


def device(id: str) -> Device:
    """Return a built-in device; ids match exactly, because a similar name is another product.

    >>> device("h100-pcie").title, device("h100-sxm").title
    ('NVIDIA H100 PCIe', 'NVIDIA H100 SXM5')
    """
    if id not in devices():
        raise HardwareError(f"device: {_unknown(id, devices())}")
    return devices()[id]
