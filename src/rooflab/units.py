"""Units that the ledger's formulas and the hardware data carry, and the checks that make a slip raise.

Base units are FLOP, byte, second, element, launch and watt.
FLOP is a count; FLOP/s is a rate.
GB is 10**9 byte and GiB is 2**30 byte; an expression that mixes decimal and binary prefixes is refused.
"""

from __future__ import annotations

import functools
import re
from decimal import ROUND_HALF_UP, Decimal

import sympy
from sympy.core.function import AppliedUndef


class Quantity(sympy.AtomicExpr):
    """A unit: a positive constant of its own. SymPy's own class takes 0.1 s to import, with all of physics."""

    is_commutative = is_real = is_positive = True
    is_number = False

    def __new__(cls, name: str):
        return super().__new__(cls, sympy.Symbol(name))

    @property
    def free_symbols(self) -> set:
        return set()

    def _sympystr(self, printer) -> str:
        return self.args[0].name

    _latex = _pretty = _sympystr


FLOP, byte, second, element, launch, watt, hertz = map(
    Quantity, ["FLOP", "byte", "second", "element", "launch", "watt", "hertz"]
)

# name -> (scale to base units, {base: power}, prefix family); "decimal" and "binary" families must not mix.
_UNITS: dict[str, tuple[sympy.Expr, dict, str | None]] = {
    "1": (sympy.Integer(1), {}, None),
    "FLOP": (sympy.Integer(1), {FLOP: 1}, None),
    "byte": (sympy.Integer(1), {byte: 1}, None),
    "B": (sympy.Integer(1), {byte: 1}, None),
    "bit": (sympy.Rational(1, 8), {byte: 1}, None),
    "s": (sympy.Integer(1), {second: 1}, None),
    "ms": (sympy.Rational(1, 10**3), {second: 1}, None),
    "us": (sympy.Rational(1, 10**6), {second: 1}, None),
    "ns": (sympy.Rational(1, 10**9), {second: 1}, None),
    "Hz": (sympy.Integer(1), {second: -1}, None),
    "MHz": (sympy.Integer(10**6), {second: -1}, None),
    "GHz": (sympy.Integer(10**9), {second: -1}, None),
    "element": (sympy.Integer(1), {element: 1}, None),
    "launch": (sympy.Integer(1), {launch: 1}, None),
    "W": (sympy.Integer(1), {watt: 1}, None),
}
for _power, _prefix in enumerate("kMGTPE", start=1):
    _UNITS[f"{_prefix}FLOP"] = (sympy.Integer(1000**_power), {FLOP: 1}, None)
    _UNITS[f"{_prefix}B"] = (sympy.Integer(1000**_power), {byte: 1}, "decimal")
    _UNITS[f"{_prefix.upper()}iB"] = (sympy.Integer(1024**_power), {byte: 1}, "binary")

_FROM_NAME: dict[str, sympy.Expr] = {
    "1": sympy.Integer(1),
    "FLOP": FLOP,
    "byte": byte,
    "B": byte,
    "s": second,
    "W": watt,
}
_FROM_NAME |= {"element": element, "launch": launch}
for _name, (_scale, _powers, _family) in _UNITS.items():
    if _name not in _FROM_NAME:
        _FROM_NAME[_name] = Quantity(_name)
_TABLE = {_FROM_NAME[name]: row for name, row in _UNITS.items() if name != "1"}
_TABLE[hertz] = _UNITS["Hz"]

kB, MB, GB, TB = (_FROM_NAME[name] for name in ("kB", "MB", "GB", "TB"))
KiB, MiB, GiB, TiB = (_FROM_NAME[name] for name in ("KiB", "MiB", "GiB", "TiB"))
GFLOP, TFLOP, PFLOP = (_FROM_NAME[name] for name in ("GFLOP", "TFLOP", "PFLOP"))
us, ms = _FROM_NAME["us"], _FROM_NAME["ms"]


# Size of one number in memory; fp4 without its scales.
DTYPE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}


class UnitError(ValueError):
    """Raised when a quantity does not carry the unit that its place demands."""


def _spell(powers: dict) -> str:
    """Return a unit's spelling, `FLOP/byte` for {FLOP: 1, byte: -1}."""
    up = [f"{base}" + (f"^{power}" if power != 1 else "") for base, power in powers.items() if power > 0]
    down = [f"{base}" + (f"^{-power}" if power != -1 else "") for base, power in powers.items() if power < 0]
    text = "·".join(up) or "1"
    for name in down:
        text += f"/{name}"
    return text.replace("second", "s")


def _powers(expr: sympy.Expr, symbol_units: dict, families: set) -> dict:
    """Return {base unit: power} of `expr`, or raise UnitError where its parts do not fit together."""
    if expr.is_number:
        return {}
    if isinstance(expr, sympy.AtomicExpr) and not expr.is_Symbol:
        if expr not in _TABLE:
            raise UnitError(f"unit {expr} is not one of this project's; use one of {', '.join(_UNITS)}")
        _, powers, family = _TABLE[expr]
        if family:
            families.add(family)
        if len(families) > 1:
            raise UnitError("decimal (GB) and binary (GiB) prefixes in one expression; write both in byte")
        return dict(powers)
    if expr.is_Symbol:
        if expr not in symbol_units:
            raise UnitError(f"symbol {expr} has no declared unit")
        return _powers(sympy.sympify(symbol_units[expr]), {}, families)
    if expr.is_Mul:
        total: dict = {}
        for factor in expr.args:
            for base, power in _powers(factor, symbol_units, families).items():
                total[base] = total.get(base, 0) + power
        return {base: power for base, power in total.items() if power != 0}
    if expr.is_Pow:
        exponent = expr.exp
        base_powers = _powers(expr.base, symbol_units, families)
        if base_powers and not exponent.is_number:
            raise UnitError(f"cannot raise a quantity in {_spell(base_powers)} to the power {exponent}")
        return {base: power * exponent for base, power in base_powers.items()}
    parts = [(part, _powers(part, symbol_units, families)) for part in expr.args]
    if expr.is_Add or isinstance(expr, (sympy.Max, sympy.Min)):
        # A bare number has no unit, so `FLOP + 1` is a slip too.
        first, unit = parts[0]
        for part, other in parts[1:]:
            if other != unit:
                raise UnitError(f"cannot add or compare {_spell(unit)} ({first}) and {_spell(other)} ({part})")
        return unit
    for part, powers in parts:
        if powers or isinstance(expr, AppliedUndef):
            raise UnitError(f"{expr.func.__name__} takes a plain number, but {part} is in {_spell(powers)}")
    return {}


def check(expr, unit, symbol_units: dict | None = None) -> None:
    """Raise UnitError unless `expr` carries `unit`; `symbol_units` maps its symbols to theirs.

    >>> check(4 * element * 2 * byte / element, byte)
    >>> check(4 * element, byte)
    Traceback (most recent call last):
    ...
    rooflab.units.UnitError: expected byte, got element: 4*element
    """
    families: set = set()
    expr = sympy.sympify(expr)
    if expr == 0:  # SymPy drops the unit of 0 TB/s
        return
    got = _powers(expr, symbol_units or {}, families)
    want = _powers(sympy.sympify(unit), {}, families)
    if got != want:
        raise UnitError(f"expected {_spell(want)}, got {_spell(got)}: {expr}")


def magnitude(expr, unit) -> sympy.Expr:
    """Return `expr` as a number of `unit`, unit-free; `expr` may hold symbols that `check` has passed.

    >>> magnitude(2 * TB / second, byte / second)
    2000000000000
    """
    scale = {quantity: row[0] for quantity, row in _TABLE.items()}
    ratio = sympy.sympify(expr) / sympy.sympify(unit)
    return ratio.xreplace(scale)


def parse(text: str) -> sympy.Expr:
    """Return the quantity that `text` spells: a number, a space, a unit such as `TFLOP/s`, `GB`, `FLOP/byte`.

    >>> parse("3.35 TB/s")
    3.35*TB/second
    """
    number, unit = _split(text)
    return number * unit


def _split(text: str) -> tuple[sympy.Float, sympy.Expr]:
    match = re.fullmatch(r"\s*([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)\s*(\S.*)?", text) if isinstance(text, str) else None
    if not match:
        raise UnitError(f"{text!r} is not a number and a unit, such as '3.35 TB/s'")
    return sympy.Float(match[1].replace(",", ""), 17), parse_unit(match[2] or "1")


@functools.cache
def parse_unit(text: str) -> sympy.Expr:
    """Return the unit that `text` spells; `/` divides by each name after it, `·` or `*` multiplies.

    >>> parse_unit("FLOP/byte")
    FLOP/byte
    """
    result = sympy.Integer(1)
    for sign, name in re.findall(r"(^|[/·*])\s*([^/·*\s]+)\s*", text.strip()):
        name = {"bytes": "byte", "µs": "us", "μs": "us", "elements": "element"}.get(name, name)
        if name not in _FROM_NAME:
            raise UnitError(f"unknown unit {name!r} in {text!r}; known units: {', '.join(_UNITS)}")
        result = result / _FROM_NAME[name] if sign == "/" else result * _FROM_NAME[name]
    return result


def value_in(quantity, unit) -> float:
    """Return `quantity` (text or expression) as a float in `unit` (text or expression).

    Raises UnitError where the two are of different kinds, or where one is decimal and the other binary.

    >>> value_in("989.4 TFLOP/s", "FLOP/s")
    989400000000000.0
    >>> value_in("80 GB", "GiB")
    Traceback (most recent call last):
    ...
    rooflab.units.UnitError: decimal (GB) and binary (GiB) prefixes in one expression; write both in byte
    """
    if isinstance(quantity, sympy.Basic):
        number, carried = 1, quantity
    else:
        number, carried = _split(quantity)
    return float(number * _factor(carried, unit if isinstance(unit, sympy.Basic) else parse_unit(unit)))


@functools.cache
def _factor(quantity: sympy.Expr, unit: sympy.Expr) -> sympy.Expr:
    """Return how many of `unit` are in `quantity`."""
    check(quantity, unit)
    # The two families must not meet either, although both are bytes.
    _powers(quantity / unit, {}, set())
    return magnitude(quantity, unit)


_SI = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}


def si(value: float, unit: str = "", digits: int = 4) -> str:
    """Return `value` with an SI prefix and `digits` significant digits, halves rounded up.

    `explorer.js` formats the same way; a test compares the two.

    >>> si(989.4e12, "FLOP/s"), si(0.00001234, "s"), si(2048.0, "FLOP/byte")
    ('989.4 TFLOP/s', '12.34 µs', '2048 FLOP/byte')
    """
    if value == 0:
        return f"0 {unit}".strip()
    exact = Decimal(float(value))
    lead = exact.copy_abs().adjusted()
    rounded = exact.quantize(Decimal(1).scaleb(lead - digits + 1), rounding=ROUND_HALF_UP)
    # Ratios keep no prefix below a million: 2048 FLOP/byte, not 2.048 kFLOP/byte.
    plain = unit in ("", "FLOP/byte", "FLOP/B") and Decimal("0.001") <= abs(rounded) < 10**6
    power = 0 if plain else max(-4, min(6, rounded.adjusted() // 3))
    mantissa = f"{rounded.scaleb(-3 * power):f}"
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa} {_SI[power]}{unit}".strip()
