"""The format explorer: a number format bit by bit, live in a notebook and without a kernel on a static page."""

from __future__ import annotations

import functools
import html
import json
import math
import re

import anywidget
import traitlets

from .. import numerics
from .explorer import front_end, site_css

# The formats that the explorer offers: the 8-bit ones, and the 16-bit ones to compare them with.
NAMES = ("E4M3", "E5M2", "bf16", "fp16")
# What the front end takes for a number, too.
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII)


def bits_source() -> str:
    """Return the ES module that a live notebook loads."""
    return front_end("bits.js") + "\nexport default { render: formatExplorer.render };\n"


def show(value: float, digits: int = 7) -> str:
    """Return a number as the front end writes it, in at most `digits` digits.

    >>> show(448.0), show(2**-16), show(-0.0), show(math.inf)
    ('448', '1.525879×10⁻⁵', '-0', '∞')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if value == 0 or -4 <= int(exponent) < 7:
        return f"{value:.{max(digits - 1 - int(exponent), 0)}f}".rstrip("0").rstrip(".") if value else f"{value:.0f}"
    return f"{float(mantissa):g}×10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
