"""The explorer on the static page, moved as a reader moves it; expected numbers come from the Python formulas."""

import dataclasses
import math
import random
import re
import unicodedata

import numpy as np
import pytest

from rooflab import records
from rooflab.hardware import device, devices
from rooflab.ledger import BREAK_EVEN_BYTES
from rooflab.roofline import Roof, Roofline, RooflineError, ceilings
from rooflab.units import si
from rooflab.widgets import (
    RooflineExplorer,
    both_scenario,
    decode_scenario,
    fusion_scenario,
    prefill_scenario,
    roofline_scenario,
    site_css,
    site_script,
)
from rooflab.widgets.explorer import all_formulas
from rooflab.widgets.scenarios import launch_scenario, tile_budget_scenario

SECTION = "01-roofline.html"
SCENARIO = roofline_scenario()
POINTS = 1000


@pytest.fixture
def page(page_at):
    page = page_at(SECTION)
    page.locator(".rooflab-chart").wait_for()
    return page


@pytest.fixture
def open_scenario(page_at, tmp_path):
    """Return a function that opens a page of one explorer from a file, and returns the page."""

    def open_page(scenario, fragment="", **options):
        file = tmp_path / f"{scenario.id}.html"
        file.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{scenario.title}</title>'
            f"<style>body {{ font-family: sans-serif; max-width: 700px }}{site_css()}</style></head><body><main>"
            f"<h1>{scenario.title}</h1>{RooflineExplorer(scenario).static_html()}</main>"
            f"<script>{site_script()}</script></body></html>",
            encoding="utf-8",
        )
        page = page_at(file.as_uri() + fragment, **options)
        page.locator(".rooflab-chart").wait_for()
        return page

    return open_page


def readout(page):
    return page.locator(".rooflab-readout").inner_text()


def settle(page):
    """Wait for the frame that the last change asked for."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def dot_position(page, index=0):
    box = page.locator(f"[data-dot='{index}']").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def random_numbers(formula, rng):
    # The share of the experts that a batch touches is a power of the batch.
    few = {"B": (1, 500), "s": (1, 9), "k_e": (1, 9), "n_e": (9, 300)}
    few = few if any(symbol.name == "n_e" for symbol in formula.symbols) else {}
    for symbol in formula.symbols:
        if symbol.name in ("b", "b_w", "b_kv", "b_a"):
            yield rng.choice([0.5, 1.0, 2.0, 4.0], POINTS)
        elif symbol.name == "c":
            yield rng.choice([0.5, 1.0], POINTS)
        elif symbol.name in few:
            yield rng.integers(*few[symbol.name], POINTS).astype(float)
        elif symbol.unit == 1:
            yield rng.integers(1, 100_000, POINTS).astype(float)
        else:
            yield 10 ** rng.uniform(-9, 16, POINTS)


def test_javascript_equals_numpy_on_random_points(page):
    rng = np.random.default_rng(7)
    formulas = all_formulas()
    inputs = {f.name: [column.tolist() for column in random_numbers(f, rng)] for f in formulas}
    got = page.evaluate(
        """([inputs, points]) => Object.fromEntries(Object.entries(inputs).map(([name, columns]) =>
             [name, Array.from({length: points}, (_, i) =>
               window.rooflab.FORMULAS[name].call(...columns.map(column => column[i])))]))""",
        [inputs, POINTS],
    )
    assert got.keys() == {formula.name for formula in formulas}
    for formula in formulas:
        expected = np.broadcast_to(formula.numpy(*map(np.array, inputs[formula.name])), POINTS)
        # As floats: a whole number beyond 2**63 comes back as an integer that NumPy cannot hold.
        np.testing.assert_allclose(np.array(got[formula.name], dtype=float), expected, rtol=1e-12, err_msg=formula.name)


def test_numbers_are_formatted_alike(page):
    rng = random.Random(3)
    values = [rng.uniform(1, 10) * 10 ** rng.randint(-14, 20) for _ in range(2000)] + [0, 1, 1024.5, 999950.0, 0.5, 1e6]
    for unit in ("FLOP/s", "FLOP/byte", ""):
        got = page.evaluate("([values, unit]) => values.map(v => window.rooflab.si(v, unit))", [values, unit])
        assert got == [si(value, unit) for value in values]


def test_nothing_changes_at_load(page):
    assert page.locator(".rooflab-error").is_hidden()
    state = page.evaluate("() => document.querySelector('[data-rooflab-explorer]').model.state")
    assert {name: state[name] for name in SCENARIO.defaults()} == SCENARIO.defaults()


def test_mouse_drag_moves_the_dot_across_the_ridge(page):
    slider = page.get_by_role("slider", name="batch B")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    y, start = box["y"] + box["height"] / 2, dot_position(page)
    assert "left of the ridge" in readout(page) and "Bound by HBM3 bandwidth" in readout(page)
    page.mouse.move(box["x"] + 8, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=8)
    settle(page)
    middle = dot_position(page)
    page.mouse.move(box["x"] + box["width"] - 8, y, steps=8)
    page.mouse.up()
    settle(page)
    end = dot_position(page)
    assert start[0] + 20 < middle[0] < end[0] - 20, "the dot moves right"
    assert end[1] < start[1] - 20, "and up"
    assert "right of the ridge" in readout(page) and "Bound by bf16 matrix peak" in readout(page)


def test_keyboard_steps_exactly_and_the_bound_flips_where_python_says(page):
    page.get_by_role("slider", name="batch B").focus()
    page.keyboard.press("Home")
    settle(page)
    line, crossed = Roofline.of(device("h100-sxm"), "bf16"), []
    for step in SCENARIO.sliders[1].values:
        bound = line.bound(SCENARIO.demands("bf16", B=step)[0])
        assert page.locator(".rooflab-slider output").nth(1).inner_text() == str(step)
        assert f"Bound by {bound.roof.label}: at most {si(bound.attainable_flop_per_s, 'FLOP/s')}" in readout(page)
        crossed.append(bound.roof.kind)
        page.keyboard.press("ArrowRight")
        settle(page)
    assert crossed == sorted(crossed, reverse=True) and len(set(crossed)) == 2


@pytest.mark.parametrize(
    ("slug", "scenario"),
    [
        ("01-roofline", roofline_scenario()),
        ("02-decode-and-prefill", decode_scenario()),
        ("02-decode-and-prefill", prefill_scenario()),
        ("02-decode-and-prefill", both_scenario()),
        ("03-fusion-levels", fusion_scenario()),
        ("06-cuda-graph-triton-compile", launch_scenario()),
    ],
    ids=lambda value: getattr(value, "id", value),
)
def test_every_readout_equals_python_over_random_states(page_at, open_scenario, slug, scenario):
    page = page_at(f"{slug}.html") if slug else open_scenario(scenario)
    box = page.locator(f"[data-rooflab-explorer='{scenario.id}']")
    box.locator(".rooflab-chart").wait_for()
    rng = random.Random(11)
    seen, floors = 0, set()
    for _ in range(25 if slug == "02-decode-and-prefill" else 60 if len(scenario.dots) > 2 else 150):
        # Every fourth state is on the device that has measured ceilings and floors.
        gpu = rng.choice([*devices().values()] + 6 * [device("h200-sxm")])
        dtype = rng.choice(gpu.dtypes("tensor"))
        sizes = {slider.name: rng.choice(slider.values) for slider in scenario.sliders}
        offered = (
            scenario.launch_modes if gpu.id == "h200-sxm" else {"none", *scenario.launch_modes} - {"eager", "graph"}
        )
        launch = rng.choice(sorted(offered))
        floors.add(launch)
        measured = gpu.id == "h200-sxm" and dtype in ("bf16", "fp8") and rng.random() < 0.5
        state = dict(device=gpu.id, dtype=dtype, launch=launch, basis="measured" if measured else "paper", **sizes)
        box.evaluate(
            "(box, s) => { const m = box.model;Object.assign(m.state, s); m.set('active', 1); m.set('active', 0); }",
            state,
        )
        settle(page)
        assert box.locator(".rooflab-error").is_hidden(), box.locator(".rooflab-error").inner_text()
        line = Roofline.of(gpu, dtype, measured=measured, launch=launch if launch in ("eager", "graph") else None)
        if launch == "slider":
            floor = Roof("launch", "launch", sizes[scenario.launch], "launch, as set")
            line = dataclasses.replace(line, roofs=(*line.roofs, floor))
        cells = box.locator(".rooflab-table tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.querySelectorAll('[data-cell]')].map(cell => cell.textContent))"
        )
        times = []
        for demand, (flop, moved, intensity, attainable, time, name) in zip(
            scenario.demands(dtype, **sizes), cells, strict=True
        ):
            assert (flop, moved) == (si(demand.flop, "FLOP"), si(demand.traffic["hbm"], "B"))
            assert intensity == si(demand.intensity_flop_per_byte())
            try:
                bound = line.bound(demand)
            except RooflineError:
                assert name == f"no vector peak on record for {gpu.title}"
                continue
            assert (attainable, time) == (si(bound.attainable_flop_per_s, "FLOP/s"), si(bound.time_s, "s"))
            assert name == bound.roof.label
            seen += 1
            times.append(bound.time_s)
        if len(times) < len(cells):
            continue
        said = box.locator(".rooflab-pairs").inner_text()
        assert all(f"{si(times[i] / times[j])}x" in said for i, j in scenario.pairs)
        explorer = RooflineExplorer(scenario, **state)
        assert [bound.time_s for bound in explorer.bounds()] == times
        said = box.locator(".rooflab-totals").inner_text()
        for total in explorer.totals():
            each, rate = si(total["time_per_token_s"], "s"), si(total["tokens_per_s"], "token/s")
            assert f"at least {si(total['time_s'], 's')}, {each} per token of a sequence, at most {rate}" in said
        said = box.locator(".rooflab-crossings").inner_text()
        for (index, name), value in zip(scenario.crossings, explorer.crossings(), strict=True):
            letter = chr(65 + index)
            if value is None:
                assert re.search(rf"{letter} \([^)]*\) stays (left|right) of the ridge for {name}", said)
            else:
                assert re.search(rf"{letter} \([^)]*\) crosses the ridge at {name} = {math.ceil(value - 1e-9)}\.", said)
    assert seen > 100
    assert floors == set(scenario.launch_modes)


def test_a_model_brings_its_groups_and_the_crossing_is_marked(page_at):
    page = page_at("02-decode-and-prefill.html")
    box = page.locator("[data-rooflab-explorer='decode']")
    box.get_by_label("Model").select_option("Llama 2 70B")
    settle(page)
    assert box.evaluate("box => [box.model.state.model, box.model.state.g]") == [6, 8]
    explorer = RooflineExplorer(decode_scenario(), model=1)
    explorer.model = 6
    assert explorer.g == 8, "and in a live notebook"
    mark = box.locator(".rooflab-crossing text").all_text_contents()
    assert mark == [f"E crosses at B = {math.ceil(explorer.crossings()[0])}"]
    box.get_by_label("Weights stored in").select_option("4 bit, shared scales")
    settle(page)
    explorer.weights = 0.515625
    assert box.locator(".rooflab-crossing text").all_text_contents() == [
        f"E crosses at B = {math.ceil(explorer.crossings()[0])}"
    ]


def test_a_real_mouse_drags_the_batch_over_the_ridge_and_the_rate_follows(page_at):
    page = page_at("02-decode-and-prefill.html")
    box = page.locator("[data-rooflab-explorer='decode']")
    slider = box.get_by_role("slider", name="batch B")
    slider.scroll_into_view_if_needed()
    box.locator("[data-dot='4']").click(force=True)
    place = slider.bounding_box()
    y = place["y"] + place["height"] / 2
    page.mouse.move(place["x"] + 8, y)
    page.mouse.down()
    page.mouse.move(place["x"] + place["width"] - 4, y, steps=10)
    page.mouse.up()
    settle(page)
    assert box.evaluate("box => box.model.state.B") == 1024
    cells = box.locator(".rooflab-table tbody tr").evaluate_all(
        "rows => rows.map(row => row.querySelector('[data-cell=bound]').textContent)"
    )
    assert [cells[index] for index in (2, 4)] == ["HBM3e bandwidth", "bf16 matrix peak"]
    expected = RooflineExplorer(decode_scenario(), B=1024).totals()[0]["tokens_per_s"]
    assert f"at most {si(expected, 'token/s')}" in box.locator(".rooflab-totals").inner_text()


def test_choosing_a_device_without_the_dtype_says_so(page):
    page.get_by_label("Number format").select_option("fp8")
    page.get_by_label("Device").select_option("a100-80gb-sxm")
    settle(page)
    assert "no fp8 peak, showing bf16" in page.locator(".rooflab-error").inner_text()
    assert "bf16" in readout(page)


def test_formula_is_shown_with_its_numbers(page):
    page.get_by_role("slider", name="batch B").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    # MathML shows italic letters as characters of their own; NFKC folds them back.
    text = unicodedata.normalize("NFKC", page.locator(".rooflab-math").inner_text())
    assert "F=2·M·N·K=2·16·4096·4096=536.9MFLOP" in re.sub(r"\s", "", text)


def test_link_reproduces_the_state_and_reset_returns(page, page_at):
    page.get_by_label("Device").select_option("h200-sxm")
    page.get_by_role("slider", name="batch B").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    settle(page)
    said = readout(page)
    link = page.get_by_role("link", name="Link to this state").get_attribute("href")
    again = page_at(SECTION + link)
    settle(again)
    assert readout(again) == said
    again.get_by_role("button", name="Reset").click()
    settle(again)
    assert "H100" in readout(again)


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("device=h900", r'unknown device "h900"; choose from .*h100-sxm'),
        ("dtype=fp4", r"has no fp4 peak; choose from bf16"),
        ("n=0", r"n is 0; give a positive number"),
        ("n=", r"n= in the link is not a number"),
        ("B=many", r"B=many in the link is not a number"),
        ("n=-5", r"n is -5; give a positive number"),
        ("colour=red", r'unknown setting "colour" in the link; choose from device'),
        ("basis=measured", r"no measured ceilings for NVIDIA H100"),
        ("launch=eager", r'no launch floor "eager" for NVIDIA H100'),
        ("active=17", r"active is 17; choose from 0 to 5"),
        ("n=1e400", r"n=1e400 in the link is not a number"),
    ],
)
def test_a_bad_link_says_why_and_never_blanks_the_chart(page_at, fragment, said):
    page = page_at(f"{SECTION}#explorer=roofline&{fragment}")
    settle(page)
    error = page.locator(".rooflab-error").inner_text()
    assert re.search(said, error) and "\n" not in error
    assert page.locator(".rooflab-roof").count() >= 3
    assert page.locator(".rooflab-dot").first.is_visible()
    assert "Bound by" in readout(page)


def test_without_javascript_there_is_a_picture_and_a_table(page_at):
    page = page_at(SECTION, js=False)
    box = page.locator("[data-rooflab-explorer]")
    assert box.locator("svg[role=img]").is_visible()
    assert box.locator("tbody tr").count() == len(SCENARIO.dots)
    assert box.get_by_text("Sliders need JavaScript").is_visible()


@pytest.mark.parametrize("scenario", [roofline_scenario(), launch_scenario()])
def test_on_a_phone_the_table_scrolls_and_the_rest_stays(open_scenario, scenario):
    page = open_scenario(scenario, width=390)
    settle(page)
    beyond = "box => box.scrollWidth - box.clientWidth"
    table = page.locator(".rooflab-table")
    assert table.evaluate(beyond) > 100, "it has more columns than a phone has room for"
    assert page.locator("[data-rooflab-explorer] .rooflab").evaluate(beyond) < 10
    assert table.evaluate("box => (box.scrollLeft = 100, box.scrollLeft)") == 100


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "scenario", [roofline_scenario(), decode_scenario(), prefill_scenario(), fusion_scenario(), tile_budget_scenario()]
)
def test_every_ceiling_has_a_name_that_no_line_strikes_through(open_scenario, scenario, width):
    page = open_scenario(scenario, f"#explorer={scenario.id}&device=h200-sxm", width=width)
    settle(page)
    names = page.locator(".rooflab-chart > g:not([class]) > text").all_text_contents()
    roofs = page.locator(".rooflab-roof").count()
    assert roofs >= 6 and len(names) == roofs
    assert sum("copy" in name for name in names) == 2
    struck = page.evaluate(
        """() => {
          const texts = [...document.querySelectorAll('.rooflab-chart > g:not([class]) > text')];
          return texts.filter((text) => {
            const back = text.getCTM().inverse(), box = text.getBBox();
            const inside = (p) => p.x > box.x + 1 && p.x < box.x + box.width - 1
              && p.y > box.y + 3 && p.y < box.y + box.height - 3;
            return [...document.querySelectorAll('.rooflab-roof')].some((path) => {
              const step = path.getTotalLength() / 799, to = back.multiply(path.getCTM());
              const places = Array.from({ length: 800 }, (_, i) => path.getPointAtLength(step * i).matrixTransform(to));
              return places.some(inside);
            });
          }).map((text) => text.textContent);
        }"""
    )
    assert struck == []


def test_on_a_phone_sentences_wrap_and_no_dot_hides_the_name_of_a_roof(open_scenario):
    page = open_scenario(launch_scenario(), width=390)
    settle(page)
    formulas = page.locator(".rooflab-math")
    assert "here a kernel moves" in formulas.inner_text()
    assert formulas.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    hidden = page.evaluate(
        """() => {
          const dots = [...document.querySelectorAll('.rooflab-dot circle')];
          return [...document.querySelectorAll('.rooflab-chart > g:not([class]) > text')].filter((text) => {
            const back = text.getScreenCTM().inverse(), box = text.getBBox();
            return dots.some((dot) => {
              const centre = new DOMPoint(0, 0).matrixTransform(back.multiply(dot.getScreenCTM()));
              const dx = Math.max(box.x - centre.x, 0, centre.x - box.x - box.width);
              const dy = Math.max(box.y - centre.y, 0, centre.y - box.y - box.height);
              return Math.hypot(dx, dy) < dot.r.baseVal.value;
            });
          }).map((text) => text.textContent);
        }"""
    )
    assert hidden == []


def test_redraw_takes_at_most_a_millisecond(page, redraw_ms, capsys):
    times = redraw_ms(page, 10)
    with capsys.disabled():
        print(f"explorer redraw: median {times[100]:.2f} ms, 95 % {times[190]:.2f} ms")
    assert times[100] <= 1.0


@pytest.mark.parametrize(
    ("name", "options"),
    [("explorer-desktop", {}), ("explorer-phone", dict(width=390, height=844)), ("explorer-dark", dict(dark=True))],
)
def test_pictures(page_at, pictures, name, options):
    page = page_at(SECTION, **options)
    box = page.locator("[data-rooflab-explorer]")
    box.scroll_into_view_if_needed()
    settle(page)
    box.screenshot(path=pictures / f"{name}.png")
    assert (pictures / f"{name}.png").stat().st_size > 10_000


def test_measured_ratios_stand_beside_the_predicted_ones(page_at):
    page = page_at("03-fusion-levels.html")
    page.locator(".rooflab-chart").wait_for()
    record = records.load("h200-sxm", "attention")
    naive, fused = (record.select(version, L=4096)[0]["time_s"] for version in ("naive", "fused"))
    said = page.locator(".rooflab-pairs").inner_text()
    assert f"E to F: 3.32x (922.7 µs to 277.9 µs), measured {si(naive / fused, digits=3)}x" in said
    assert page.locator(".rooflab-points polygon").count() == 6
    page.get_by_label("Launch floor").select_option("eager")
    settle(page)
    assert page.locator(".rooflab-points polygon").count() == 0
    assert "measured" not in page.locator(".rooflab-pairs").inner_text()


def test_a_readers_points_are_squares_also_for_a_card_that_is_not_on_the_menu(page_at):
    page = page_at("03-fusion-levels.html")
    page.locator(".rooflab-chart").wait_for()
    book = page.locator(".rooflab-points polygon").count()
    page.evaluate(
        """() => {
            const model = document.querySelector('[data-rooflab-explorer]').model;
            const own = { ...model.get('points')[0], label: 'yours: a', source: 'yours, today', when: {}, dot: null };
            const add = ['my-gpu', model.get('device'), 'b200-hgx'].map((device) => ({ ...own, device }));
            model.set('points', [...model.get('points'), ...add]);
            model.save_changes();
        }"""
    )
    settle(page)
    # The dot of another known device waits for that device to be chosen.
    assert page.locator(".rooflab-points .rooflab-own").count() == 2
    assert page.locator(".rooflab-points polygon").count() == book + 2
    assert "Squares: your points (yours, today)." in page.locator("[data-rooflab-explorer]").inner_text()


def bound_by(page):
    return page.locator("[data-cell=bound]").all_text_contents()


def panel(page):
    """Return the text under the table."""
    return page.locator(".rooflab-math").inner_text()


def test_a_real_mouse_drags_a_kernels_size_over_the_break_even(open_scenario):
    page, beta = open_scenario(launch_scenario()), device("h200-sxm").bytes_per_s()
    break_even = BREAK_EVEN_BYTES(beta=beta, t_launch=5e-6)
    slider = page.get_by_role("slider", name="elements n")
    slider.scroll_into_view_if_needed()
    place = slider.bounding_box()
    y, state = place["y"] + place["height"] / 2, "() => document.querySelector('[data-rooflab-explorer]').model.state.n"
    page.mouse.move(place["x"] + 8, y)
    page.mouse.down()
    seen, heights = [], []
    for share in np.linspace(0.02, 0.98, 25):
        page.mouse.move(place["x"] + place["width"] * share, y, steps=2)
        settle(page)
        moved = 4 * page.evaluate(state)
        assert bound_by(page)[0] == ("launch, as set" if moved < break_even else "HBM3e bandwidth")
        # Both times stand beside each other, whichever is larger, and so does where they are equal.
        said = panel(page)
        assert f"{si(256 * 5e-6, 's')} launch, as set" in said
        assert f"{si(256 * moved / beta, 's')} HBM3e bandwidth" in said
        assert re.search(rf"= {si(break_even, 'B')}; here a kernel moves {si(moved, 'B')}\.", said)
        seen.append(bound_by(page)[0])
        heights.append(dot_position(page)[1])
    page.mouse.up()
    assert seen[0] != seen[-1] and len(set(seen)) == 2
    assert heights[-1] < heights[0] - 50, "the dot rises to the memory roof"
    assert heights[-1] == pytest.approx(heights[-2], abs=1), "and stays there"


def test_fusing_launch_bound_kernels_gains_their_number(open_scenario):
    page = open_scenario(launch_scenario(), "#explorer=launch&k=8&n=256")
    settle(page)
    assert "A to B: 8x (40 µs to 5 µs)" in page.locator(".rooflab-pairs").inner_text()


def test_the_floor_pulls_the_first_dot_down_and_a_graph_lets_it_rise(open_scenario):
    page = open_scenario(launch_scenario())
    menu, slider = page.get_by_label("Launch floor"), page.get_by_role("slider", name="time per launch")
    assert menu.input_value() == "slider" and slider.is_enabled()
    set_by_slider = dot_position(page)[1]
    for choice, kernels_s in (
        ("graph", 256 * ceilings("h200-sxm")["launch graph"].rate),
        ("none", 256 * 4 * 2**18 / 4.8e12),
    ):
        menu.select_option(choice)
        settle(page)
        assert f"at least {si(kernels_s, 's')}" in readout(page)
        assert bound_by(page)[0] == {"graph": "launch, graph", "none": "HBM3e bandwidth"}[choice]
        assert ("here a kernel moves" in panel(page)) == (choice == "graph")
        assert dot_position(page)[1] < set_by_slider - 15
        assert slider.is_disabled(), "it would move nothing"
    page.get_by_label("Device").select_option("l4")
    settle(page)
    assert [menu.locator(f"[value={mode}]").is_disabled() for mode in ("none", "eager", "graph", "slider")] == [
        False,
        True,
        True,
        False,
    ]
    menu.select_option("slider")
    settle(page)
    assert bound_by(page)[0] == "launch, as set" and slider.is_enabled()


def test_a_device_without_a_measured_floor_takes_the_sliders(open_scenario):
    page = open_scenario(launch_scenario(), "#explorer=launch&launch=eager")
    settle(page)
    assert bound_by(page)[0] == "launch, eager"
    page.get_by_label("Device").select_option("h100-sxm")
    settle(page)
    assert "no measured launch floor, showing the slider's" in page.locator(".rooflab-error").inner_text()
    assert bound_by(page)[0] == "launch, as set"


def test_only_the_launch_page_offers_the_sliders_floor(open_scenario):
    for scenario, offered in ((launch_scenario(), True), (fusion_scenario(), False)):
        menu = open_scenario(scenario).get_by_label("Launch floor")
        assert (
            menu.locator("option").all_text_contents()
            == ["none", "eager launches", "CUDA graph"] + ["as set by the slider"] * offered
        )
        assert menu.input_value() == ("slider" if offered else "none")


def test_keyboard_link_and_reset_of_the_time_per_launch(open_scenario):
    page = open_scenario(launch_scenario())
    slider = page.get_by_role("slider", name="time per launch")
    slider.focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert slider.get_attribute("aria-valuetext") == "7 µs" and f"at least {si(256 * 7e-6, 's')}" in readout(page)
    page.keyboard.press("Home")
    settle(page)
    assert slider.get_attribute("aria-valuetext") == "200 ns"
    link = page.get_by_role("link", name="Link to this state").get_attribute("href")
    assert "launch=slider" in link and "t_launch=2e-7" in link
    again = open_scenario(launch_scenario(), link)
    settle(again)
    assert readout(again) == readout(page) and again.locator(".rooflab-error").is_hidden()
    again.get_by_role("button", name="Reset").click()
    settle(again)
    assert f"at least {si(256 * 5e-6, 's')}" in readout(again) and "#" not in again.url


@pytest.mark.parametrize(
    ("scenario", "fragment", "said"),
    [
        (
            fusion_scenario(),
            "launch=slider",
            'no launch floor "slider" for NVIDIA H200 SXM; choose from none, eager, graph.',
        ),
        (
            launch_scenario(),
            "launch=fast",
            'no launch floor "fast" for NVIDIA H200 SXM; choose from none, eager, graph, slider.',
        ),
        (launch_scenario(), "launch=toString", 'no launch floor "toString" for NVIDIA H200 SXM'),
        (launch_scenario(), "t_launch=0", "t_launch is 0; give a positive number"),
    ],
    ids=lambda value: getattr(value, "id", value),
)
def test_a_link_with_an_impossible_launch_floor_says_why(open_scenario, scenario, fragment, said):
    page = open_scenario(scenario, f"#explorer={scenario.id}&{fragment}")
    settle(page)
    assert said in page.locator(".rooflab-error").inner_text()
    assert "Bound by" in readout(page)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_launch_page_is_accessible_and_is_pictured(open_scenario, violations, pictures, width):
    page = open_scenario(launch_scenario(), width=width)
    assert violations(page) == []
    page.locator("[data-rooflab-explorer]").screenshot(path=pictures / f"explorer-launch-{width}.png")


def test_the_tile_page_adds_up_its_units_as_the_ledger_does(open_scenario):
    """Cards, formats and tiles at random: each unit's time, all one after another, and the share of the peak."""
    scenario = tile_budget_scenario()
    page = open_scenario(scenario)
    rng, led = random.Random(7), set()
    for _ in range(40):
        gpu = rng.choice(scenario.devices)
        dtype = rng.choice([each for each in ("bf16", "fp8") if each in gpu.dtypes("tensor")])
        sizes = {slider.name: rng.choice(slider.values) for slider in scenario.sliders}
        page.evaluate(
            "s => { const box = document.querySelector('[data-rooflab-explorer]');"
            " Object.assign(box.model.state, s); box.model.set('active', 1); box.model.set('active', 0); }",
            dict(device=gpu.id, dtype=dtype, basis="paper", **sizes),
        )
        settle(page)
        P, P_v = gpu.peak_flop_per_s(dtype, "tensor"), gpu.peak_flop_per_s("fp32", "vector")
        rows, keys, d_h = (sizes[name] for name in ("B_M", "B_N", "d_h"))
        parts = {
            "products": 4 * rows * keys * d_h / P,
            "exponentials": rows * keys / gpu.peak_flop_per_s("fp32", "exp"),
            "rest": rows * (7 * keys + 2 * d_h) / P_v,
        }
        serial = sum(parts.values())
        led.add(max(parts, key=parts.get))
        said = panel(page)
        assert all(si(time, "s") in said for time in parts.values())
        assert f"= {si(serial, 's')}, so {si(4 * rows * keys * d_h / serial, 'FLOP/s')}, " in said
        assert f"{si(100 * parts['products'] / serial, '', 3)} % of the {dtype} matrix peak" in said
    assert {"products", "exponentials"} <= led
