"""What a page shows of an experiment: measured here when there is a GPU, else replayed; the reader's own beside it."""

from __future__ import annotations

import html
from dataclasses import dataclass

from .. import records, timing
from .campaign import Campaign, named, require_fresh

BOOK_DEVICE = "h200-sxm"


@dataclass(frozen=True)
class Results:
    """The book's record, and the reader's own where there is one; shown, it is a banner that says which and when."""

    book: records.Record
    own: records.Record | None
    live: bool

    def __repr__(self) -> str:
        return self.banner()

    def _repr_html_(self) -> str:
        return f'<p class="rooflab-banner">{html.escape(self.banner())}</p>'

    def banner(self) -> str:
        """Return where the numbers come from: GPU, date and versions of the book's record, and of the reader's own."""
        text = f"{self.book.experiment}: replayed from a record. {_origin(self.book)}"
        if self.own:
            text += f". Beside it, {'measured here' if self.live else 'your record'}: {_origin(self.own)}"
        return text


def _origin(record: records.Record) -> str:
    run = record.runs[-1]
    versions = ", ".join(f"{name} {run['versions'][key]}" for name, key in _NAMES.items() if run["versions"].get(key))
    return f"{run['gpu']}, {run['measured'][:10]}, {versions}"


_NAMES = {"PyTorch": "torch", "Triton": "triton", "CUDA": "cuda"}


def results(experiment: str, *, quick: bool = True) -> Results:
    """Return the results of an experiment for a page: on a GPU it is measured first, without one it is replayed.

    `quick` measures the few cases that take seconds; rows that are already there are not measured again.
    """
    (chosen,) = named([experiment])
    book = require_fresh(records.load(BOOK_DEVICE, experiment))
    live = timing.has_gpu()
    if live:
        campaign = Campaign([chosen], root=records.own_root(), quick=quick)
        for _ in campaign.steps():
            pass
        return Results(book, records.find(campaign.device, experiment, records.own_root()), True)
    for device in records.devices_with_records(records.own_root()):
        if own := records.find(device, experiment, records.own_root()):
            return Results(book, own, False)
    return Results(book, None, False)
