"""Experiments: what is measured, the campaign that measures it, and the results that pages show."""

from .base import Experiment, Gpu
from .campaign import Campaign, device_id, is_stale, named, require_fresh
from .counters import causes, dram_bytes
from .results import Results, results
from .suite import EXPERIMENTS, runs_on

__all__ = [
    "EXPERIMENTS",
    "Campaign",
    "Experiment",
    "Gpu",
    "Results",
    "causes",
    "device_id",
    "dram_bytes",
    "is_stale",
    "named",
    "panel",
    "require_fresh",
    "results",
    "runs_on",
]


def __getattr__(name: str):
    # Only when asked for: it needs ipywidgets, and `rooflab measure` on a bare GPU box does not.
    if name == "panel":
        from .panel import panel

        globals()[name] = panel  # importing it has put the module there
        return panel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
