"""Figures are the same text for the same drawing, follow the page's colour, and carry a text alternative."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.text import Text

from rooflab import figures
from rooflab.hardware import device
from rooflab.ledger import Demand
from rooflab.roofline import Roofline

LINE = Roofline.of(device("h200-sxm"), "bf16")


def draw():
    return figures.roofline_figure(LINE, [Demand("work", {"tensor": 1e12}, {"hbm": 1e9})])


def test_svg_is_reproducible():
    assert figures.svg(draw(), "a chart") == figures.svg(draw(), "a chart")


def test_svg_follows_the_page_and_names_itself():
    text = figures.svg(draw(), 'a "chart"')
    assert 'role="img"' in text and 'aria-label="a &quot;chart&quot;"' in text
    assert "currentColor" in text and figures._INK not in text
    # No plain black, no white ground: they would vanish in one of the two modes. White letters sit on coloured dots.
    assert not re.search(r"(fill|stroke): #000000|stroke: #ffffff", text)
    assert text.count("#ffffff") == 1
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)


def test_ids_differ_between_figures_on_a_page():
    one = figures.svg(draw(), "a")
    two = figures.svg(figures.roofline_figure(LINE), "b")
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0] and ids[1] and not ids[0] & ids[1]
    for text, own in zip((one, two), ids, strict=True):
        used = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)}
        assert used and used <= own


def test_a_figure_without_words_is_refused():
    with pytest.raises(ValueError, match="text alternative"):
        figures.show(draw(), " ")


def test_dots_sit_at_their_bound():
    (ax,) = draw().axes
    (dot,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert dot.get_xdata()[0] == 1000.0
    assert dot.get_ydata()[0] == pytest.approx(989e12)


def test_table_refuses_ragged_rows_and_escapes():
    with pytest.raises(ValueError, match="has 1 cells, the header"):
        figures.table(["a", "b"], [["x"]])
    assert "&lt;b&gt;" in figures.table(["a"], [["<b>"]])._repr_html_()


def test_a_cell_of_words_may_wrap_and_a_number_with_its_unit_may_not():
    text = figures.table(["a", "b"], [["1,048,576", "989.4 TFLOP/s"], ["a chain of operations, fused and not", ""]])
    assert re.findall("<td([^>]*)>", text._repr_html_()) == ["", "", ' class="rooflab-words"', ""]


def test_a_timeline_shows_every_kernel_where_it_ran_and_overlaps_in_two_lanes():
    track = [("rows_kernel", 5e-6, 4e-6), ("split_kernel", 8e-6, 2e-6), ("add", 11e-6, 50e-6), ("late", 90e-6, 1e-6)]
    (ax,) = figures.timeline_figure({"ours": track}, 20e-6).axes
    bars = [bar for bar in ax.patches if bar.get_width() > 0]
    # From the first kernel on; the third is cut at the end, and the last lies beyond it.
    assert [bar.get_x() for bar in bars] == pytest.approx([0, 3, 6])
    assert [bar.get_width() for bar in bars] == pytest.approx([4, 2, 14])
    heights = [bar.get_y() for bar in bars]
    assert heights[1] < heights[0] == heights[2], "the second runs beside the first"
    assert len({bar.get_facecolor() for bar in bars}) == 3


def test_a_timeline_of_the_units_of_a_tile():
    """The units of a tile: the second track begins with nothing at 0, so that its first bar keeps its place."""
    tracks = {"one": [("products", 0.0, 2e-6), ("rest", 2e-6, 1e-6)], "two": [("rest", 0, 0), ("products", 2e-6, 2e-6)]}
    (ax,) = figures.timeline_figure(tracks, 4e-6, ("products", "exponentials", "rest"), str).axes
    bars = [bar for bar in ax.patches if bar.get_width() > 0]
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 2), (2, 1), (2, 2)]
    first, rest, second = (bar.get_facecolor() for bar in bars)
    assert first == second != rest
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["products", "exponentials", "rest"]
    # One lane each: what follows at once does not stand below.
    assert bars[0].get_y() == bars[1].get_y()


def covered(fig):
    """Return the names that a line, a dot or another name of a chart crosses, from what was drawn."""
    fig.draw_without_rendering()
    (ax,) = fig.axes
    places = []
    for line in ax.lines:
        corners = line.get_transform().transform(line.get_xydata())
        places += [np.linspace(a, b, 400) for a, b in zip(corners, corners[1:], strict=False)] or [corners]
    texts = [text for text in ax.texts if len(text.get_text()) > 1]
    boxes = []
    for text in texts:
        angle = text.get_rotation()
        text.set_rotation(0)
        # Without the arrow.
        box = Text.get_window_extent(text).padded(-1)
        text.set_rotation(angle)
        foot = ax.transData.transform(text.get_position())
        cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        # Into the frame in which the name lies level.
        turn = (lambda p, foot=foot, cos=cos, sin=sin: (p - foot) @ [[cos, -sin], [sin, cos]] + foot) if angle else None
        boxes.append((box, turn))
    found = set()
    for text, (box, turn) in zip(texts, boxes, strict=True):
        for each in places:
            turned = turn(each) if turn else each
            if ((turned > box.min) & (turned < box.max)).all(axis=1).any():
                found.add(text.get_text())
    level = [(text.get_text(), box) for text, (box, turn) in zip(texts, boxes, strict=True) if not turn]
    found |= {a[0] for a, b in itertools.permutations(level, 2) if a[1].overlaps(b[1])}
    return found


def test_nothing_strikes_through_the_names_of_slopes_and_steps():
    """The chart of section 7 and one with roofs on paper and measured, whose slopes lie a few pixels apart."""
    measured = Roofline.of(device("h200-sxm"), "bf16", measured=True)
    steps = [("naive", 63, 236e12), ("fa1", 8192, 7.55e12), ("fa2", 8192, 589e12), ("fa3", 8192, 690e12)]
    points = [(50, 7.55e12), (64, 589e12), (186, 690e12)]
    work = [Demand("work", {"tensor": 1e12}, {"hbm": 1e9})]
    axes = {"x_range": (1, 3e5), "y_range": (1e12, 3e16)}
    assert covered(figures.roofline_figure(measured, steps=steps, points=points, **axes)) <= {
        "fp32 vector peak, 66.9 TFLOP/s"
    }
    both = figures.roofline_figure(LINE, work, measured=measured, x_range=(10, 1e4), y_range=(1e13, 3e15))
    assert covered(both) == set()
    assert {text.get_rotation() > 0 for text in both.axes[0].texts if "copy" in text.get_text()} == {True}
