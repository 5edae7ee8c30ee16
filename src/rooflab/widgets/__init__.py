"""The roofline explorer: scenarios (data), the widget, its kernel-free twin for the site; and the format explorer."""

from .bits import FormatExplorer
from .explorer import RooflineExplorer, site_css, site_script
from .scenario import Dot, Point, Scenario, ScenarioError, Slider, Total, powers_of_two
from .scenarios import (
    both_scenario,
    decode_points,
    decode_scenario,
    fusion_points,
    fusion_scenario,
    gemm_points,
    launch_scenario,
    prefill_scenario,
    roofline_scenario,
    tile_budget_scenario,
    waves_scenario,
)

__all__ = [
    "Dot",
    "FormatExplorer",
    "Point",
    "RooflineExplorer",
    "Scenario",
    "ScenarioError",
    "Slider",
    "Total",
    "both_scenario",
    "decode_points",
    "decode_scenario",
    "fusion_points",
    "fusion_scenario",
    "gemm_points",
    "launch_scenario",
    "powers_of_two",
    "prefill_scenario",
    "roofline_scenario",
    "site_css",
    "site_script",
    "tile_budget_scenario",
    "waves_scenario",
]
