"""Unit slips raise; right units pass; formatting rounds halves up."""

import pytest
import sympy
import sympy.physics.units

from rooflab import units
from rooflab.units import FLOP, GB, UnitError, byte, element, launch, second

n, b = sympy.symbols("n b", positive=True)
OF = {n: sympy.Integer(1), b: byte / element}


@pytest.mark.parametrize(
    ("expr", "unit"),
    [
        (2 * n * FLOP, FLOP),
        (b * n * element, byte),
        (n * FLOP / second, FLOP / second),
        (sympy.Max(n * FLOP, 3 * FLOP), FLOP),
        (sympy.ceiling(n / 2) * launch, launch),
        (sympy.sqrt(n**2) * byte, byte),
        (FLOP / byte * (byte / second), FLOP / second),
    ],
)
def test_right_units_pass(expr, unit):
    units.check(expr, unit, OF)


@pytest.mark.parametrize(
    ("expr", "unit", "said"),
    [
        (n * element, byte, "expected byte, got element"),
        (n * FLOP / second, FLOP, "expected FLOP, got FLOP/s"),
        (n * FLOP, FLOP / second, "expected FLOP/s, got FLOP"),
        (b * n * element + n * element, byte, "cannot add or compare"),
        (n * FLOP + 1, FLOP, "cannot add or compare"),
        (sympy.Max(FLOP, byte), FLOP, "cannot add or compare"),
        (sympy.exp(n * byte), 1, "exp takes a plain number"),
        (sympy.ceiling(n * byte), byte, "ceiling takes a plain number"),
        (byte**n, byte, "to the power"),
        (3 * GB + 2 * units.GiB, byte, "decimal (GB) and binary (GiB)"),
        (sympy.Symbol("x") * byte, byte, "no declared unit"),
        (sympy.physics.units.meter, byte, "not one of this project's"),
    ],
)
def test_slips_raise(expr, unit, said):
    with pytest.raises(UnitError) as slip:
        units.check(expr, unit, OF)
    assert said in str(slip.value)
    assert "\n" not in str(slip.value)


def test_bytes_of_both_families():
    # 2**30 / 10**9, and the 128.5 GiB of a 137.953 GB checkpoint.
    assert units.value_in("1 GiB", "byte") == 2**30
    assert units.value_in("137.953 GB", "byte") / units.value_in("1 GiB", "byte") == pytest.approx(128.479, abs=5e-4)
    with pytest.raises(UnitError, match="decimal"):
        units.value_in("80 GB", "GiB")
    with pytest.raises(UnitError, match="expected FLOP/s, got FLOP"):
        units.value_in("989 TFLOP", "FLOP/s")


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
        ("3.35 TB/s", "B/s", 3.35e12),
        ("1,979 TFLOP/s", "FLOP/s", 1.979e15),
        ("11.8 µs", "s", 11.8e-6),
        ("295 FLOP/byte", "FLOP/byte", 295),
        ("1.83 GHz", "Hz", 1.83e9),
        ("4 bit", "byte", 0.5),
        ("1e3 GB/s", "TB/s", 1.0),
    ],
)
def test_parsing(text, unit, value):
    assert units.value_in(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["", "fast", "3.35", "3.35 TB/fortnight", "TB/s", None, "3,3,5 TiBs"])
def test_bad_quantities_raise(text):
    with pytest.raises(UnitError) as error:
        units.value_in(text, "B/s")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (989.4e12, "FLOP/s", "989.4 TFLOP/s"),
        (1364.667, "FLOP/byte", "1365 FLOP/byte"),
        (999950.0, "B", "1 MB"),
        (1024.5, "", "1025"),  # a half rounds up, where float formatting would give 1024
        (3.4e-9, "s", "3.4 ns"),
        (0, "s", "0 s"),
        (5e-15, "s", "0.005 ps"),
        (0.25, "FLOP/byte", "0.25 FLOP/byte"),
        (2.5e6, "FLOP/byte", "2.5 MFLOP/byte"),
        (1e22, "FLOP", "10000 EFLOP"),
    ],
)
def test_si(value, unit, text):
    assert units.si(value, unit) == text
