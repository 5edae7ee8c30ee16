"""Scenarios and the widget's Python side; the front end is tested in tests/browser."""

import json
import re

import ipywidgets
import pytest
import traitlets

from rooflab.hardware import devices
from rooflab.roofline import Roofline
from rooflab.widgets import Dot, RooflineExplorer, Scenario, ScenarioError, Slider, powers_of_two, roofline_scenario
from rooflab.widgets.explorer import module_source, site_script

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
