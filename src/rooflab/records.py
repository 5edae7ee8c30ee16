"""Recorded measurements: what was measured, on what, when; everything else is computed from them."""

from __future__ import annotations

import json
from importlib import resources


class RecordError(ValueError):
    """Raised when a record is missing or cannot be read."""


def load(device: str, experiment: str) -> dict:
    """Return the record of `experiment` on a device: its provenance, and `rows` with values in base units.

    >>> load("h200-sxm", "gemm")["rows"][0]["flop_per_s"]
    611000000000000.0
    """
    folder = resources.files(__package__) / "data" / "measurements" / device
    path = folder / f"{experiment}.json"
    if not path.is_file():
        have = sorted(each.name.removesuffix(".json") for each in folder.iterdir()) if folder.is_dir() else []
        raise RecordError(f"no record {experiment!r} for {device}; it has {', '.join(have) or 'none'}")
    return json.loads(path.read_text(encoding="utf-8"))
