"""The roofline explorer: scenarios (data), the widget, and its kernel-free twin for the static site."""

from .explorer import RooflineExplorer, site_css, site_script
from .scenario import Dot, Point, Scenario, ScenarioError, Slider, powers_of_two
from .scenarios import fusion_points, fusion_scenario, gemm_points, roofline_scenario

__all__ = [
    "Dot",
    "Point",
    "RooflineExplorer",
    "Scenario",
    "ScenarioError",
    "Slider",
    "fusion_points",
    "fusion_scenario",
    "gemm_points",
    "powers_of_two",
    "roofline_scenario",
    "site_css",
    "site_script",
]
