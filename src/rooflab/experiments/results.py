"""What a page shows of an experiment: measured here when there is a GPU, else replayed; the reader's own beside it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .. import records, timing
from ..figures import Table, table
from ..units import si
from .campaign import Campaign, is_stale, named, require_fresh

BOOK_DEVICE = "h200-sxm"


@dataclass(frozen=True)
class Results:
    """The book's record, and the reader's own where there is one; shown, it is a banner that says which and when."""

    book: records.Record
    own: records.Record | None
    live: bool = False
    note: str = ""

    def __repr__(self) -> str:
        return self.banner()

    def _repr_html_(self) -> str:
        return f'<p class="rooflab-banner">{html.escape(self.banner())}</p>'

    def rows(self, version: str | None = None, **case) -> list[dict]:
        """Return the book's rows of a version whose case has these values."""
        return self.book.select(version, **case)

    def one(self, version: str, **case) -> dict:
        """Return the book's one row of a version and a case; raise RecordError unless there is exactly one."""
        rows = self.rows(version, **case)
        if len(rows) != 1:
            raise records.RecordError(f"{self.book.experiment}: {len(rows)} rows of {version!r} with {case}, not one")
        return rows[0]

    def sides(self) -> list[tuple[str, records.Record, Path]]:
        """Return whose records a figure draws, each with its folder: ("", the book's), (" (yours)", the reader's own).

        The second is there only where the reader has a record.
        """
        own = [(" (yours)", self.own, records.own_root())] if self.own else []
        return [("", self.book, records.BOOK), *own]

    def table(self, by: str, versions: Sequence[str], clock: str = "time_s", **case) -> Table:
        """Return a table of times: a row for each value of `by`, a column for each version, the reader's own below.

        `clock` is "time_s" for the GPU's time or "wall_s" for the host's.
        """
        lines = []
        for whose, record, _ in self.sides():
            for value in dict.fromkeys(row["case"][by] for row in record.select(**case)):
                found = {row["version"]: row[clock] for row in record.select(**{by: value} | case)}
                cells = [si(found[name], "s") if name in found else "" for name in versions]
                lines.append([f"{value}{whose}", *cells])
        kind = {"time_s": "time on the GPU", "wall_s": "wall time per call on the host"}[clock]
        return table([by, *versions], lines, f"{kind}, median. {_origin(self.book)}")

    def ratios(self, over: str, under: str, by: str, clock: str = "time_s", **case) -> dict[str, tuple]:
        """Return {whose: (values of `by`, time of `over` / time of `under`)} for the book and for the reader."""
        series = {}
        for whose, record, _ in self.sides():
            times = {
                name: {row["case"][by]: row[clock] for row in record.select(name, **case)} for name in (over, under)
            }
            values = sorted(times[over].keys() & times[under].keys())
            if values:
                quotients = [times[over][value] / times[under][value] for value in values]
                series["yours" if whose else record.device] = (values, quotients)
        return series

    def banner(self) -> str:
        """Return where the numbers come from: GPU, date and versions of the book's record, and of the reader's own."""
        text = f"{self.book.experiment}: replayed from a record. {_origin(self.book)}"
        if self.own:
            text += f". Beside it, {'measured here' if self.live else 'your record'}: {_origin(self.own)}"
        return text + (f". {self.note}" if self.note else "")


def _origin(record: records.Record) -> str:
    """Return the GPU, date and versions of the runs that the record's rows name."""
    said = {}
    for run in (record.runs[row["run"]] for row in record.rows):
        found = [f"{name} {run['versions'][key]}" for name, key in _NAMES.items() if run["versions"].get(key)]
        said[", ".join([run["gpu"], run["measured"][:10], *found])] = None
    return "; ".join(said)


_NAMES = {"PyTorch": "torch", "Triton": "triton", "CUDA": "cuda"}


def results(experiment: str, *, quick: bool = True) -> Results:
    """Return the results of an experiment for a page: on a GPU it is measured first, without one it is replayed.

    `quick` measures the few cases that take seconds; rows that are already there are not measured again.
    Of the reader's own record only the rows of today's kernels are shown; the banner counts the others.
    With ROOFLAB_REPLAY set nothing is measured, and only the book's record is shown.
    """
    (chosen,) = named([experiment])
    book = require_fresh(records.load(BOOK_DEVICE, experiment))
    if len(records.shown_roots()) == 1:
        return Results(book, None)
    root = records.own_root()
    devices, live, note = records.devices_with_records(root), False, ""
    if timing.has_gpu():
        campaign = Campaign([chosen], root=root, quick=quick)
        for _ in campaign.steps():
            live = True
        devices = [campaign.device]
    for device in devices:
        own = records.find(device, experiment, root) or records.Record(device, experiment)
        fresh = [row for row in own.rows if not is_stale(row)]
        if stale := len(own.rows) - len(fresh):
            note = (
                f"Not shown: {stale} of your {len(own.rows)} rows of {device}/{experiment}, which are of an older "
                f"kernel; to measure them again, run on that GPU: rooflab measure {experiment}"
            )
        if fresh:
            return Results(book, replace(own, rows=fresh), live, note)
    return Results(book, None, live, note)
