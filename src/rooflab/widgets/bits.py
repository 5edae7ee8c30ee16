"""The format explorer: a number format bit by bit, live in a notebook and without a kernel on a static page."""

from __future__ import annotations

import html
import json
import math
import re
from decimal import ROUND_HALF_UP, Context

import anywidget
import traitlets

from .. import numerics
from .explorer import site_css, static_text

# The formats that the explorer offers: the 8-bit ones, and the 16-bit ones to compare them with.
FORMATS = {format.name: format for format in (numerics.E4M3, numerics.E5M2, numerics.BF16, numerics.FP16)}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# What the front end takes for a number, too.
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII)


def bits_source() -> str:
    """Return the ES module that a live notebook loads."""
    return static_text("common.js") + static_text("bits.js") + "\nexport default { render: formatExplorer.render };\n"


def show(value: float) -> str:
    """Return a number as the front end writes it, in at most seven digits; halves are rounded up, as JavaScript does.

    >>> show(448.0), show(1.0078125), show(2**-16), show(-0.0), show(math.inf)
    ('448', '1.007813', '1.525879×10⁻⁵', '-0', '∞')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    rounded = Context(prec=7, rounding=ROUND_HALF_UP).create_decimal(value)
    exponent = rounded.adjusted() if value else 0
    if -4 <= exponent < 7:
        return f"{float(rounded):.7g}"
    return f"{float(rounded.scaleb(-exponent)):.7g}×10" + str(exponent).translate(_SUPERSCRIPT)


def _record(format: numerics.Format) -> dict:
    """Return what the front end needs to know of a format."""
    shape = {"exponent": format.exponent_bits, "mantissa": format.mantissa_bits, "bias": format.bias}
    return shape | {"infinity": format.has_infinity, "nan": format.encode(math.nan)}


def _facts(format: numerics.Format) -> tuple[str, ...]:
    """Return a format's row of the static table."""
    beyond = format.decode(format.encode(2 * format.largest, saturate=False))
    sizes = (format.largest, format.smallest_normal, format.smallest_subnormal, format.spacing(1.0))
    return (f"{format.exponent_bits} + {format.mantissa_bits}", *map(show, sizes), show(beyond))


class FormatExplorer(anywidget.AnyWidget):
    """A number format with its bits as buttons. A `typed` number is rounded to the format and says the `code`.

    `code` starts at that of 1, unless a code or a number is given.

    >>> explorer = FormatExplorer(format="E4M3", code=0b0_1111_110)
    >>> explorer.value
    448.0
    >>> explorer.typed = "3.3"
    >>> explorer.value
    3.25
    """

    formats = traitlets.Dict().tag(sync=True)
    static = traitlets.Bool(False).tag(sync=True)
    format = traitlets.Unicode("E4M3").tag(sync=True)
    code = traitlets.Int(0).tag(sync=True)
    typed = traitlets.Unicode("").tag(sync=True)
    saturate = traitlets.Bool(False).tag(sync=True)

    def __init__(self, format: str = "E4M3", code: int | None = None, **state):
        self._esm, self._css = bits_source(), site_css()
        if unknown := state.keys() - {"typed", "saturate"}:
            choices = "format, code, typed, saturate"
            raise traitlets.TraitError(f"unknown setting {', '.join(sorted(unknown))}; choose from {choices}")
        if not state.get("typed", "").strip():
            known = FORMATS.get(format)
            state["code"] = known.encode(1.0) if code is None and known else code or 0
        super().__init__(format=format, formats={name: _record(each) for name, each in FORMATS.items()}, **state)

    @traitlets.validate("format")
    def _known_format(self, proposal):
        if proposal["value"] not in FORMATS:
            raise traitlets.TraitError(f"unknown format {proposal['value']!r}; choose from {', '.join(FORMATS)}")
        # A typed number is rounded anew, so its code in the old format need not fit.
        if not self.typed:
            self._fits(proposal["value"], self.code)
        return proposal["value"]

    @traitlets.validate("code")
    def _known_code(self, proposal):
        return self._fits(self.format, proposal["value"])

    @traitlets.validate("typed")
    def _a_number(self, proposal):
        text = proposal["value"].strip()
        if text and not _NUMBER.fullmatch(text):
            raise traitlets.TraitError(f"{text!r} is no number; type one such as 3.3, -1e-4, inf or nan")
        return text

    def _fits(self, format: str, code: int) -> int:
        # Traits that change together are validated in any order: an unknown format is for its own validator.
        known = FORMATS.get(format)
        if known and not 0 <= code < 2**known.bits:
            raise traitlets.TraitError(f"code is {code}; {format} has codes 0 to {2**known.bits - 1}")
        return code

    def _rounded(self) -> int:
        return FORMATS[self.format].encode(float(self.typed), saturate=self.saturate)

    @traitlets.observe("typed", "format", "saturate")
    def _round(self, _change) -> None:
        if self.typed:
            self.code = self._rounded()

    @traitlets.observe("code")
    def _forget(self, _change) -> None:
        """Drop the typed number when a code is chosen that it does not round to."""
        if self.typed and self.code != self._rounded():
            self.typed = ""

    @property
    def value(self) -> float:
        """Return the value of the code; NaN and infinities included."""
        return FORMATS[self.format].decode(self.code)

    def bits(self) -> str:
        """Return the bits as sign, exponent and mantissa.

        >>> FormatExplorer().bits()
        '0 | 0111 | 000'
        """
        shape = FORMATS[self.format]
        text = f"{self.code:0{shape.bits}b}"
        return " | ".join((text[0], text[1 : -shape.mantissa_bits], text[-shape.mantissa_bits :]))

    def __repr__(self) -> str:
        # Stable, so that a stored output does not change from run to run.
        return f"FormatExplorer({self.format!r}, {self.code:#0{FORMATS[self.format].bits // 4 + 2}x})"

    def _repr_mimebundle_(self, **kwargs):
        live = super()._repr_mimebundle_(**kwargs)
        data, metadata = live if isinstance(live, tuple) else (live, {})
        return data | {"text/html": self.static_html()}, metadata

    def static_html(self) -> str:
        """Return the kernel-free twin: the state as JSON, and a table of the formats for readers without JavaScript."""
        names = ("formats", "format", "code", "typed", "saturate")
        state = json.dumps({name: getattr(self, name) for name in names}, separators=(",", ":"))
        # `</` would end the script element early.
        state = state.replace("</", "<\\/")
        return (
            '<div class="rooflab-explorer" data-rooflab-format>'
            f'<script type="application/json">{state}</script>{self._table()}</div>'
        )

    def _table(self) -> str:
        head = ("format", "exponent + mantissa bits", "largest", "smallest normal", "smallest subnormal")
        head += ("spacing from 1 to 2", "twice the largest becomes")
        head = "".join(f"<th scope='col'>{name}</th>" for name in head)
        rows = "".join(
            f"<tr><th scope='row'>{name}</th>" + "".join(f"<td>{cell}</td>" for cell in _facts(each)) + "</tr>"
            for name, each in FORMATS.items()
        )
        rounded = f"{self.typed} becomes " if self.typed else ""
        now = f"{self.format}, bits {self.bits()}: {rounded}{show(self.value)}"
        return (
            f"<table><caption>{html.escape(now)}. Toggling bits needs JavaScript.</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )
