"""Experiments: what is measured, the campaign that measures it, and the results that pages show."""

from .base import Experiment, Gpu
from .campaign import Campaign, device_id, is_stale, named, require_fresh
from .counters import causes, dram_bytes
from .panel import panel
from .results import Results, results
from .suite import EXPERIMENTS

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
]
