"""The book's figures: Matplotlib drawings as inline SVG that follows the page's text colour, light or dark."""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from .ledger import Demand
from .roofline import COMPUTE, MEMORY, Roofline
from .units import si

# Okabe and Ito's colours: distinct for every common kind of colour vision, on light and on dark ground.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Drawn in this colour, replaced by the page's own.
_INK = "#010203"
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
    "legend.frameon": False,
} | {f"{name}.color": _INK for name in ("text", "xtick", "ytick")}
_STYLE |= {"axes.edgecolor": _INK, "axes.labelcolor": _INK, "grid.color": "#888888", "grid.alpha": 0.3}


@dataclass(frozen=True)
class Picture:
    """A figure as a notebook shows it: inline SVG with a text alternative, and a caption that names the source."""

    svg: str
    alt: str
    caption: str = ""

    def __repr__(self) -> str:
        return f"Picture: {self.alt}"

    def _repr_html_(self) -> str:
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure class="rooflab-figure">{self.svg}{caption}</figure>'


@dataclass(frozen=True)
class Table:
    """A table as a notebook shows it; numbers are given as text, with their units in the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __repr__(self) -> str:
        return "\n".join(" | ".join(row) for row in (self.header, *self.rows))

    def _repr_html_(self) -> str:
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return f'<table class="rooflab-data">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def table(header: Sequence[str], rows: Iterable[Sequence], caption: str = "") -> Table:
    """Return a table for a page; a row of another length than the header raises ValueError.

    >>> table(["device", "FLOP/byte"], [["H100 SXM5", 295]])
    device | FLOP/byte
    H100 SXM5 | 295
    """
    cells = tuple(tuple(str(cell) for cell in row) for row in rows)
    for row in cells:
        if len(row) != len(header):
            raise ValueError(f"row {row} has {len(row)} cells, the header {tuple(header)} has {len(header)}")
    return Table(tuple(header), cells, caption)


def figure(width: float = 6.8, height: float = 4.0):
    """Return a Matplotlib figure and its axes (inches) in the book's style; draw inside `with style():`."""
    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots()


def style():
    """Return the context in which the book's figures are drawn."""
    return matplotlib.rc_context(_STYLE)


def show(fig: Figure, alt: str, caption: str = "") -> Picture:
    """Return `fig` as a picture. `alt` says in words what it shows; it must not be empty."""
    return Picture(svg(fig, alt), alt, caption)


def svg(fig: Figure, alt: str) -> str:
    """Return `fig` as an inline SVG element, the same text for the same drawing."""
    if not alt.strip():
        raise ValueError("a figure needs a text alternative; say in words what it shows")
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "rooflab"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids must be unique on a page that shows several figures.
    mark = "f" + hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{mark}-", text)
    label = html.escape(alt, quote=True)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def lines_figure(series: dict[str, tuple], xlabel: str, ylabel: str, *, log_y: bool = False, base: int = 2) -> Figure:
    """Return lines over a logarithmic x axis: {name: (xs, ys)}.

    A name that begins with "predicted" is drawn dashed, one that is or ends in "yours" dotted with hollow marks.
    """
    with style():
        fig, ax = figure(height=3.4)
        ax.set_xscale("log", base=base)
        if log_y:
            ax.set_yscale("log")
        for index, (name, (xs, ys)) in enumerate(series.items()):
            dashed, own = name.startswith("predicted"), name.endswith(("yours", "(yours)"))
            marker, line = "" if dashed else "osD^v"[index % 5], "--" if dashed else ":" if own else "-"
            hollow = {"mfc": "none"} if own else {}
            ax.plot(xs, ys, marker=marker, ls=line, color=_INK if dashed else None, label=name, **hollow)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        if not log_y:
            ax.set_ylim(bottom=0)
        ax.grid(True)
        # Many names would cover the lines.
        below = {"ncols": 2, "loc": "upper center", "bbox_to_anchor": (0.5, -0.2)} if len(series) > 8 else {}
        ax.legend(fontsize=8, **below)
    return fig


# What a kernel's name contains, and what it is; any other is small work between the large.
_KINDS = {
    "product": ("nvjet", "gemm", "gemv", "rows_kernel"),
    "attention": ("sdpa", "flash", "split_kernel", "combine"),
}


def kind_of(kernel: str) -> str:
    """Return "product", "attention" or "other" for a kernel's name.

    >>> kind_of("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"), kind_of("combine_kernel"), kind_of("reduce_kernel")
    ('product', 'attention', 'other')
    """
    return next((kind for kind, parts in _KINDS.items() if any(part in kernel for part in parts)), "other")


def timeline_figure(
    tracks: dict[str, Sequence[tuple[str, float, float]]],
    span_s: float,
    kinds: Sequence[str] = (*_KINDS, "other"),
    kind_of: Callable[[str], str] = kind_of,
) -> Figure:
    """Return kernels as bars over `span_s` of time, a track each: {name: [(kernel, begin_s, time_s), ...]}.

    A track begins with its first kernel. A kernel that begins before another has ended stands in a lane below it.
    `kind_of` gives a bar's kind by its name, and each of the three `kinds` has a colour.
    """
    colours = dict(zip(kinds, (COLOURS[0], COLOURS[1], "#888888"), strict=True))
    with style():
        fig, ax = figure(height=0.8 + 0.6 * len(tracks))
        for index, kernels in enumerate(tracks.values()):
            start, free_s = kernels[0][1], [0.0] * 3
            for kernel, begin_s, time_s in kernels:
                begin_s -= start
                if begin_s > span_s:
                    break
                lane = next((each for each in range(3) if free_s[each] <= begin_s), free_s.index(min(free_s)))
                free_s[lane] = begin_s + time_s
                width = min(time_s, span_s - begin_s) * 1e6
                ax.barh(-index - 0.24 * lane, width, 0.21, begin_s * 1e6, color=colours[kind_of(kernel)], lw=0)
        ax.set_yticks([-index for index in range(len(tracks))], list(tracks))
        ax.set(xlabel="time, µs", xlim=(0, span_s * 1e6))
        ax.tick_params(axis="y", length=0)
        for kind, colour in colours.items():
            ax.barh(0, 0, color=colour, label=kind)
        ax.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    return fig


def roofline_figure(
    line: Roofline,
    demands: Iterable[Demand] = (),
    *,
    measured: Roofline | None = None,
    labels: Sequence[str] = (),
    points: Iterable[tuple[float, float]] = (),
    steps: Sequence[tuple[str, float, float]] = (),
    own: Sequence[tuple[str, float, float]] = (),
    x_range: tuple[float, float] = (0.1, 1e5),
    y_range: tuple[float, float] = (1e10, 1e16),
) -> Figure:
    """Return a roofline chart on log-log axes: FLOP/byte across, FLOP/s up.

    Solid lines are the roofs of `line`, dashed ones those of `measured` that differ.
    Each demand is a lettered dot at its bound under `line`; `labels` name the dots, else the demands' titles do.
    `points` are measured (FLOP/byte, FLOP/s), drawn as diamonds.
    `steps` are measured (name, FLOP/byte, FLOP/s), numbered, with an arrow from each to the next.
    `own` are the reader's measured (name, FLOP/byte, FLOP/s), drawn as squares.
    """
    demands = list(demands)
    units = {unit for demand in demands for unit in demand.work}
    with style():
        fig, ax = figure()
        ax.set(xscale="log", yscale="log", xlim=x_range, ylim=y_range)
        ax.set(xlabel="intensity, FLOP/byte", ylabel="performance, FLOP/s")
        ax.xaxis.set(major_formatter=FuncFormatter(lambda value, _: f"{value:g}"), minor_locator=NullLocator())
        ax.yaxis.set(major_formatter=FuncFormatter(lambda value, _: si(value)), minor_locator=NullLocator())
        ax.grid(True)
        slopes = []
        for each in [line, *([measured] if measured else [])]:
            compute = [roof for roof in each.roofs if roof.kind == COMPUTE and (not units or roof.key in units)]
            memory = [roof for roof in each.roofs if roof.kind == MEMORY]
            new = [roof for roof in (*compute, *memory) if each is line or roof.basis == "measured"]
            for roof in new:
                slopes += _draw_roof(ax, roof, compute, memory, x_range, y_range)
        for spot in points:
            ax.plot(*spot, "D", color=_INK, mfc="none", ms=7)
        for index, (_, *spot) in enumerate(steps):
            if index:
                ax.annotate("", spot, steps[index - 1][1:], arrowprops={"arrowstyle": "->", "color": _INK})
            ax.plot(*spot, "o", color=COLOURS[index % len(COLOURS)], ms=7)
        named = [(f"{number} {name}", *spot) for number, (name, *spot) in enumerate(steps, 1)]
        _name_aside(ax, named, 0.42, "right", 0.78)
        for index, (name, *spot) in enumerate(own):
            ax.plot(*spot, "s", color=COLOURS[1], mfc="none", ms=8, label="" if index else "yours")
            if not steps:
                ax.annotate(name, spot, (7, 0), textcoords="offset points", fontsize=7, va="center")
        _name_aside(ax, own if steps else (), 0.8, "left", 0.88)
        for index, demand in enumerate(demands):
            spot = (demand.intensity_flop_per_byte(), line.bound(demand).attainable_flop_per_s)
            name = f"{chr(65 + index)} {labels[index] if labels else demand.title}"
            ax.plot(*spot, "o", color=COLOURS[index % len(COLOURS)], ms=11, label=name)
            ax.annotate(chr(65 + index), spot, ha="center", va="center_baseline", fontsize=7, color="white")
        if demands or own:
            ax.legend(loc="lower center" if steps else "lower right", fontsize=8)
        # Only now is the shape of the axes known, and with it the angle of a slope of one.
        fig.draw_without_rendering()
        for text, (x, y) in slopes:
            (x0, y0), (x1, y1) = ax.transData.transform([(x, y), (10 * x, 10 * y)])
            text.set_rotation(np.degrees(np.arctan2(y1 - y0, x1 - x0)))
    return fig


def _name_aside(ax, spots, place: float, align: str, top: float) -> None:
    """Write names and rates of (name, x, FLOP/s), which may lie close, evenly up to `top` at `place` of the width."""
    for (name, *spot), height in zip(spots, np.linspace(0.1, top, len(spots)), strict=True):
        ax.annotate(
            f"{name}, {si(spot[1], 'FLOP/s', 3)}",
            spot,
            (place, height),
            textcoords="axes fraction",
            fontsize=8,
            ha=align,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "#888888", "lw": 0.6, "relpos": (float(align == "right"), 0.5)},
        )


def _draw_roof(ax, roof, compute, memory, x_range, y_range) -> list:
    """Draw one roof up to where it meets the others of its line; return slanted labels with their places."""
    dash, above = ("-", True) if roof.basis == "paper" else ("--", False)
    text = f"{roof.label}, {si(roof.rate, 'FLOP/s' if roof.kind == COMPUTE else 'B/s')}"
    put = {"textcoords": "offset points", "fontsize": 8, "va": "bottom" if above else "top"}
    if roof.kind == COMPUTE:
        start = max(x_range[0], roof.rate / max(each.rate for each in memory))
        ax.plot([start, x_range[1]], [roof.rate] * 2, color=_INK, ls=dash, lw=1.6)
        ax.annotate(text, (x_range[1], roof.rate), (-2, 3 if above else -8), ha="right", **put)
        return []
    ends = np.array([max(x_range[0], y_range[0] / roof.rate), max(each.rate for each in compute) / roof.rate])
    ax.plot(ends, ends * roof.rate, color=_INK, ls=dash, lw=1.6)
    spot = (ends[0] * 1.3, ends[0] * 1.3 * roof.rate)
    label = ax.annotate(text, spot, (-3, 3) if above else (3, -3), rotation_mode="anchor", **put)
    return [(label, spot)]
