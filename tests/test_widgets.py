"""Scenarios and the widget's Python side; the front end is tested in tests/browser."""

import dataclasses
import itertools
import json
import re

import ipywidgets
import pytest
import traitlets

from rooflab.hardware import devices
from rooflab.roofline import Roofline, ceilings
from rooflab.widgets import Dot, RooflineExplorer, Scenario, ScenarioError, Slider, powers_of_two, roofline_scenario
from rooflab.widgets.explorer import module_source, site_script
from rooflab.widgets.scenarios import fusion_scenario, launch_scenario, tile_budget_scenario

N = Slider("n", "size n", powers_of_two(64, 4096), 1024)
GEMV = Dot("GEMV", "gemv", {"M": "n", "K": "n", "b": "dtype"})


@pytest.fixture
def explorer():
    return RooflineExplorer(roofline_scenario())


def test_bounds_follow_the_traits(explorer):
    explorer.n, explorer.B = 8192, 512
    line = Roofline.of(devices()["h100-sxm"], "bf16")
    expected = [line.bound(demand) for demand in roofline_scenario().demands("bf16", n=8192, B=512)]
    assert [bound.time_s for bound in explorer.bounds()] == [bound.time_s for bound in expected]
    assert explorer.bounds()[0].demand.flop == 2 * 512 * 8192**2
    assert explorer.bounds()[0].roof.label == "bf16 matrix peak"


def test_real_ipywidgets_can_be_linked(explorer):
    slider = ipywidgets.FloatSlider(min=64, max=32768, value=64)
    traitlets.link((slider, "value"), (explorer, "n"))
    slider.value = 2048
    assert explorer.n == 2048
    explorer.n = 512
    assert slider.value == 512


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "h900"}, r"unknown device 'h900'; choose from .*h100-sxm"),
        ({"device": "a100-80gb-sxm", "dtype": "fp8"}, "has no fp8 peak; choose a dtype from bf16, fp16"),
        ({"dtype": "bf61"}, "has no bf61 peak; choose a dtype from bf16"),
        ({"n": 0}, "n is 0.0; it must be positive and finite"),
        ({"n": float("nan")}, "n is nan"),
        ({"B": -4}, "B is -4.0"),
        ({"basis": "hope"}, "basis is 'hope'; choose from paper, measured"),
        ({"launch": "fast"}, "launch is 'fast'; choose from none, eager, graph"),
        ({"active": 99}, "active is 99; choose from 0, 1"),
        ({"size": 4}, "unknown setting size; choose from device"),
    ],
)
def test_bad_settings_raise_one_line_with_the_choices(change, said):
    with pytest.raises(traitlets.TraitError, match=said) as error:
        RooflineExplorer(roofline_scenario(), **change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scenario", "launch", "choices"),
    [(roofline_scenario(), "slider", "none, eager, graph"), (launch_scenario(), "fast", "none, eager, graph, slider")],
    ids=["roofline", "launch"],
)
def test_a_launch_floor_that_the_scenario_lacks_raises(scenario, launch, choices):
    with pytest.raises(traitlets.TraitError, match=f"^launch is '{launch}'; choose from {choices}$"):
        RooflineExplorer(scenario, launch=launch)


def test_only_a_scenario_with_the_slider_starts_with_its_launch_floor():
    assert launch_scenario().defaults()["launch"] == RooflineExplorer(launch_scenario()).launch == "slider"
    assert launch_scenario().state()["launch"] == "t_launch"
    for scenario in (roofline_scenario(), fusion_scenario()):
        assert (scenario.defaults()["launch"], scenario.state()["launch"]) == ("none", "")


@pytest.mark.parametrize("basis", ["paper", "measured"])
def test_the_launch_floor_is_the_sliders_value(basis):
    explorer = RooflineExplorer(launch_scenario(), basis=basis)
    beta = Roofline.of(devices()["h200-sxm"], "bf16", measured=basis == "measured")._roof("memory", "hbm").rate
    kinds = set()
    for k, n, t_launch in itertools.product((1, 256), (2**12, 2**28), (0.6e-6, 40e-6)):
        explorer.k, explorer.n, explorer.t_launch = k, n, t_launch
        unfused, fused = explorer.bounds()
        assert unfused.time_s == pytest.approx(k * max(t_launch, 4 * n / beta))
        assert fused.time_s >= max(t_launch, 4 * n / beta) * (1 - 1e-9)
        kinds.add(unfused.roof.kind)
        assert "launch, as set" in {roof.label for roof in unfused.time_by_roof}
    assert kinds == {"launch", "memory"}


def test_without_the_slider_the_floor_is_measured_or_none():
    explorer = RooflineExplorer(launch_scenario(), t_launch=40e-6)
    explorer.launch = "graph"
    graph = explorer.bounds()[0]
    assert graph.roof.label == "launch, graph"
    assert graph.time_s == pytest.approx(256 * ceilings("h200-sxm")["launch graph"].rate)
    explorer.launch = "none"
    assert explorer.bounds()[0].roof.kind == "memory"
    explorer.launch, explorer.device = "slider", "l4"
    assert explorer.bounds()[0].time_s == pytest.approx(256 * 40e-6), "nobody has to have measured it"


def test_every_state_of_the_launch_page_lies_on_its_axes():
    scenario = launch_scenario()
    ends = [(slider.values[0], slider.values[-1]) for slider in scenario.sliders]
    (left, right), (low, high) = scenario.x_range, scenario.y_range
    for gpu in scenario.devices:
        if "fp32" not in gpu.dtypes("vector"):
            continue
        for dtype, launch, sizes in itertools.product(
            gpu.dtypes("tensor"), ("none", "slider"), itertools.product(*ends)
        ):
            state = dict(zip(("k", "n", "t_launch"), sizes, strict=True), device=gpu.id, dtype=dtype, launch=launch)
            for bound in RooflineExplorer(scenario, **state).bounds():
                assert left < bound.demand.intensity_flop_per_byte() < right, state
                assert low < bound.attainable_flop_per_s < high, state


def test_a_sliders_unit_is_shown_without_javascript():
    assert "time per launch 5 µs. Sliders" in RooflineExplorer(launch_scenario()).static_html()


@pytest.mark.parametrize("change", [{"n": 0}, {"device": "h900"}, {"basis": "hope"}])
def test_a_refused_change_leaves_the_state_as_it_was(explorer, change):
    ((name, value),) = change.items()
    before = getattr(explorer, name)
    with pytest.raises(traitlets.TraitError):
        setattr(explorer, name, value)
    assert getattr(explorer, name) == before


def test_repr_is_stable_and_html_is_the_twin(explorer):
    assert repr(explorer) == "RooflineExplorer('roofline')"
    data, _ = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    explorer.n = 8192
    page = explorer.static_html()
    state = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert state["defaults"]["n"] == 8192 and isinstance(state["defaults"]["n"], int)
    # Without JavaScript: a picture with a text alternative, and every dot in a table.
    assert re.search(r'<svg role="img" aria-label="[^"]{50,}"', page)
    assert page.count("<tr><th scope='row'>") == len(state["dots"])


def test_front_end_needs_no_imports_and_no_eval():
    for text in (module_source(), site_script()):
        assert not re.search(r"\bimport\b[^;\n]*['\"]|\beval\(|new Function", text)
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "export" not in site_script().replace("export function render", "")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Slider("n", "n", (1, 2), 3), "start 3 is not one of its values"),
        (lambda: Slider("n", "n", (2, 1), 2), "must be positive, finite and rising"),
        (lambda: Slider("n", "n", (0, 1), 1), "must be positive, finite and rising"),
        (lambda: Scenario("x", "x", (Dot("d", "gemmm", {}),), (N,)), "unknown workload 'gemmm'; choose from dot"),
        (lambda: Scenario("x", "x", (Dot("d", "gemv", {"M": "n"}),), (N,)), "no value for K, b"),
        (lambda: Scenario("x", "x", (Dot("d", "gemv", {"M": "m"}),), (N,)), "unknown slider 'm'"),
        (lambda: Scenario("x", "x", (GEMV,), (N,), launch="t"), "launch comes from unknown slider 't'"),
        (lambda: Scenario("x", "x", (GEMV,), (N,), launch="dtype"), "launch comes from unknown slider 'dtype'"),
        (lambda: Scenario("x", "x", (GEMV,), (N,), device="h900"), "unknown device 'h900'; choose from"),
    ],
)
def test_scenarios_that_do_not_fit_together_raise(build, said):
    with pytest.raises(ScenarioError, match=re.escape(said)):
        build()


def test_a_scenario_takes_a_readers_own_devices():
    from rooflab.hardware import Device

    mine = Device.simple(
        "mine", "Mine", peaks={"bf16": "100 TFLOP/s", "fp32": "9 TFLOP/s"}, hbm="1 TB/s", source="a", date="2026"
    )
    explorer = RooflineExplorer(Scenario("x", "x", (GEMV,), (N,), device="mine", devices=(mine,)))
    assert explorer.bounds()[0].roof.rate == 1e12
    with pytest.raises(traitlets.TraitError, match="unknown device 'h100-sxm'; choose from mine"):
        explorer.device = "h100-sxm"


TILE_PAGE = tile_budget_scenario()


def tile_times(gpu, dtype, **sizes):
    """Return the bound of the tile page's dot under the roofs that the page shows, and its times by roof."""
    line = Roofline.of(gpu, dtype)
    line = dataclasses.replace(line, roofs=(*line.roofs, *TILE_PAGE.unit_roofs(gpu)))
    (demand,) = TILE_PAGE.demands(dtype, **sizes)
    bound = line.bound(demand)
    return bound, {roof.key: time for roof, time in bound.time_by_roof.items() if roof.key != "hbm"}


@pytest.mark.parametrize(
    ("name", "dtype", "d_h", "exp_over_mma"),
    [
        # Matrix FLOP per clock and SM over 16 exponentials, over 4 d_h: 2048, 4096 and 8192 in bf16.
        ("a100-80gb-sxm", "bf16", 64, 0.5),
        ("a100-80gb-sxm", "bf16", 128, 0.25),
        ("h100-sxm", "bf16", 128, 0.5),
        ("h100-sxm", "fp8", 128, 1.0),
        ("h100-sxm", "fp8", 64, 2.0),
        ("h200-sxm", "bf16", 64, 1.0),
        ("h200-sxm", "fp8", 256, 0.5),
        ("b200-hgx", "bf16", 128, 1.0),
        ("b200-hgx", "fp8", 128, 2.0),
    ],
)
def test_the_tile_page_shows_a_third_roof(name, dtype, d_h, exp_over_mma):
    bound, times = tile_times(devices()[name], dtype, d_h=d_h)
    assert times["exp"] / times["tensor"] == pytest.approx(exp_over_mma, rel=0.01)
    leads = "exp" if exp_over_mma > 1.01 else "tensor"
    assert bound.roof.key == leads or exp_over_mma == 1


def test_fp8_halves_the_products_and_leaves_the_exponentials():
    card = devices()["h100-sxm"]
    (_, bf16), (_, fp8) = tile_times(card, "bf16"), tile_times(card, "fp8")
    assert fp8["tensor"] == pytest.approx(bf16["tensor"] / 2, rel=1e-3)
    assert (fp8["exp"], fp8["vector"]) == (bf16["exp"], bf16["vector"])


def test_only_the_tile_page_has_exponential_roofs():
    for scenario in (TILE_PAGE, roofline_scenario(), fusion_scenario(), launch_scenario()):
        roofs = {
            roof["key"] for card in scenario.state()["devices"] for rows in card["compute"].values() for roof in rows
        }
        assert ("exp" in roofs) == (scenario is TILE_PAGE), scenario.id
        assert scenario.state()["serial"] == (scenario is TILE_PAGE)


def test_the_tile_page_keeps_to_its_axes_and_the_ledgers_serial_time():
    from rooflab import ledger

    ends = [(slider.values[0], slider.values[-1]) for slider in TILE_PAGE.sliders]
    for card in TILE_PAGE.devices:
        for dtype, sizes in itertools.product(card.dtypes("tensor"), itertools.product(*ends)):
            state = dict(zip(("d_h", "B_M", "B_N", "L"), sizes, strict=True))
            bound, times = tile_times(card, dtype, **state)
            assert TILE_PAGE.x_range[0] < bound.demand.intensity_flop_per_byte() < TILE_PAGE.x_range[1]
            assert TILE_PAGE.y_range[0] < bound.attainable_flop_per_s < TILE_PAGE.y_range[1]
            rates = {"P": card.peak_flop_per_s(dtype, "tensor"), "P_exp": card.peak_flop_per_s("fp32", "exp")}
            rates |= {"P_v": card.peak_flop_per_s("fp32", "vector")}
            serial = ledger.TILE_SERIAL_TIME(**{k: v for k, v in state.items() if k != "L"}, **rates)
            assert sum(times.values()) == pytest.approx(serial)


@pytest.mark.parametrize("card", TILE_PAGE.devices, ids=lambda card: card.id)
def test_the_tile_explorer_has_the_pages_roofs(card):
    explorer = RooflineExplorer(TILE_PAGE, device=card.id)
    expected, _ = tile_times(card, "bf16")
    assert explorer.bounds()[0].time_by_roof == expected.time_by_roof
    assert "Sliders need JavaScript" in explorer.static_html()
