"""The book's figures: Matplotlib drawings as inline SVG that follows the page's text colour, light or dark."""

from __future__ import annotations

import hashlib
import html
import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

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
        body = "".join("<tr>" + "".join(map(self._cell, row)) + "</tr>" for row in self.rows)
        return f'<table class="rooflab-data">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    @staticmethod
    def _cell(text: str) -> str:
        # Longer than a number with its unit, so that it may wrap.
        words = ' class="rooflab-words"' if len(text) > 24 else ""
        return f"<td{words}>{html.escape(text)}</td>"


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
        below = {"ncols": 2, "loc": "upper center", "bbox_to_anchor": (0.5, -0.2)} if len(series) > 6 else {}
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
        slopes, names = [], []
        for each in [line, *([measured] if measured else [])]:
            compute = [roof for roof in each.roofs if roof.kind == COMPUTE and (not units or roof.key in units)]
            memory = [roof for roof in each.roofs if roof.kind == MEMORY]
            new = [roof for roof in (*compute, *memory) if each is line or roof.basis == "measured"]
            for roof in new:
                slopes += _draw_roof(ax, roof, compute, memory, x_range, y_range)
        for spot in points:
            ax.plot(*spot, "D", color=_INK, mfc="none", ms=7)
        for index, (name, *spot) in enumerate(steps):
            if index:
                ax.annotate("", spot, steps[index - 1][1:], arrowprops={"arrowstyle": "->", "color": _INK})
            ax.plot(*spot, "o", color=COLOURS[index % len(COLOURS)], ms=7)
            names.append((f"{index + 1} {name}, {si(spot[1], 'FLOP/s', 3)}", *spot))
        for index, (name, *spot) in enumerate(own):
            ax.plot(*spot, "s", color=COLOURS[1], mfc="none", ms=8, label="" if index else "yours")
            names.append((f"{name}, {si(spot[1], 'FLOP/s', 3)}" if steps else name, *spot))
        for index, demand in enumerate(demands):
            spot = (demand.intensity_flop_per_byte(), line.bound(demand).attainable_flop_per_s)
            name = f"{chr(65 + index)} {labels[index] if labels else demand.title}"
            ax.plot(*spot, "o", color=COLOURS[index % len(COLOURS)], ms=11, label=name)
            ax.annotate(chr(65 + index), spot, ha="center", va="center_baseline", fontsize=7, color="white")
        if demands or own:
            ax.legend(loc="lower center" if steps else "lower right", fontsize=8)
        # Only now is the shape of the axes known, and with it the angle of a slope of one.
        fig.draw_without_rendering()
        written = _name_slopes(ax, slopes)
        _name_spots(ax, names, written, [spot for _, *spot in steps])
    return fig


def _name_slopes(ax, slopes) -> np.ndarray:
    """Write slopes' names along them: caches' above all slopes, main memory's below; return where (pixels)."""
    point = ax.figure.dpi / 72
    written = [np.empty((0, 2))]
    for above in (True, False):
        chosen = sorted((roof.rate, text, x) for roof, text, x in slopes if (roof.key != "hbm") == above)
        if not chosen:
            continue
        # In the order of the slopes, a line of text apart, from the outermost slope on.
        rate = (max if above else min)(roof.rate for roof, *_ in slopes)
        for row, (_, text, x) in enumerate(chosen if above else reversed(chosen)):
            foot, further = ax.transData.transform([(x, x * rate), (10 * x, 10 * x * rate)])
            along = (further - foot) / np.hypot(*(further - foot))
            aside = np.array([-along[1], along[0]]) * (1 if above else -1)
            # Beyond a dot that lies on the slope.
            middle = foot + ((20 if above else 10) * along + (12 + 11 * row) * aside) * point
            place = ax.transData.inverted().transform(middle)
            label = ax.text(*place, text, fontsize=8, va="center", rotation_mode="anchor")
            length = label.get_window_extent().width
            label.set_rotation(np.degrees(np.arctan2(along[1], along[0])))
            steps = np.arange(0, length, 3)[:, None] * along
            written += [middle + steps + shift * aside * point for shift in (-4, 0, 4)]
    return np.concatenate(written)


def _name_spots(ax, spots, taken: np.ndarray, path) -> None:
    """Write the name of each (name, x, y) as near to it as it covers nothing: no line, dot or name, nor `taken`."""
    point = ax.figure.dpi / 72
    # What is drawn, as places a few pixels apart.
    for line in [line.get_xydata() for line in ax.lines] + ([path] if path else []):
        corners = ax.transData.transform(line)
        for a, b in zip(corners, np.roll(corners, -1, 0) if len(corners) == 1 else corners[1:], strict=False):
            taken = np.vstack([taken, np.linspace(a, b, 2 + int(np.hypot(*(b - a)) / 3))])
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text() and not text.get_rotation()]
    boxes += [ax.get_legend().get_window_extent()] if ax.get_legend() else []
    for name, *spot in sorted(spots, key=lambda each: -each[2]):
        here = ax.transData.transform(spot)
        label = ax.annotate(name, spot, (0, 0), textcoords="offset points", fontsize=8, va="center")
        width, height = label.get_window_extent().size
        tried = []
        for side, dx, dy in itertools.product((-1, 1), (12, 40, 70, 100), range(-160, 161, 4)):
            end = here + np.array([side * dx, dy]) * point
            box = Bbox.from_bounds(end[0] - (width if side < 0 else 0), end[1] - height / 2, width, height)
            room, leader = box.padded(2 * point), np.linspace(here, end, 50)[6:]
            covers = _inside(room, taken).sum() + sum(room.overlaps(each) for each in boxes)
            covers += sum(_inside(each, leader).any() for each in boxes) + 99 * (
                not _inside(ax.bbox, room.corners()).all()
            )
            tried.append((covers, dx + 1.5 * abs(dy), side, dx, dy, room, leader))
        *_, side, dx, dy, room, leader = min(tried, key=lambda each: each[:2])
        label.remove()
        arrow = {"arrowstyle": "-", "color": "#888888", "lw": 0.6, "relpos": (float(side < 0), 0.5)}
        put = {"textcoords": "offset points", "fontsize": 8, "va": "center", "ha": "right" if side < 0 else "left"}
        ax.annotate(name, spot, (side * dx, dy), arrowprops=arrow, **put)
        boxes.append(room)
        taken = np.vstack([taken, leader])


def _inside(box: Bbox, places: np.ndarray) -> np.ndarray:
    """Return for each place whether it lies in the box."""
    return ((places > box.min) & (places < box.max)).all(axis=1)


def _draw_roof(ax, roof, compute, memory, x_range, y_range) -> list:
    """Draw one roof up to where it meets the others of its line; return slopes as (roof, text, x of its start)."""
    dash, above = ("-", True) if roof.basis == "paper" else ("--", False)
    text = f"{roof.label}, {si(roof.rate, 'FLOP/s' if roof.kind == COMPUTE else 'B/s')}"
    if roof.kind == COMPUTE:
        start = max(x_range[0], roof.rate / max(each.rate for each in memory))
        ax.plot([start, x_range[1]], [roof.rate] * 2, color=_INK, ls=dash, lw=1.6)
        # Clear of a dot on the line.
        put = {"textcoords": "offset points", "fontsize": 8, "va": "bottom" if above else "top", "ha": "right"}
        ax.annotate(text, (x_range[1], roof.rate), (-2, 6 if above else -12), **put)
        return []
    ends = np.array([max(x_range[0], y_range[0] / roof.rate), max(each.rate for each in compute) / roof.rate])
    ax.plot(ends, ends * roof.rate, color=_INK, ls=dash, lw=1.6)
    return [(roof, text, ends[0])]
