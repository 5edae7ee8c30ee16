"""Recorded measurements: one JSON file per GPU and experiment, one row a line, written whole or not at all.

A record holds what was measured and on what; rates, bounds and shares are computed from it.
Each row carries a digest, so that a damaged or edited row is refused, and the passing correctness check of its run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = 1
BOOK = Path(__file__).parent / "data" / "measurements"
_ROW_KEYS = ("case", "version", "run", "kernel", "time_s", "p20_s", "p80_s", "wall_s", "samples", "cache", "launches")
_ROW_KEYS += ("check", "observed", "digest")


class RecordError(ValueError):
    """Raised when a record is missing, damaged, of another schema, or when a row lacks its evidence."""


class StaleRecord(RecordError):
    """Raised when a record was measured with another source than the one that is here now."""


def own_root() -> Path:
    """Return the folder of the reader's own records: ROOFLAB_RECORDS, else the user's data folder."""
    if chosen := os.environ.get("ROOFLAB_RECORDS"):
        return Path(chosen)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rooflab" / "measurements"


def shown_roots() -> list[tuple[str, Path]]:
    """Return what pages draw: ("", the book's folder), and ("yours", the reader's own) unless ROOFLAB_REPLAY is set.

    The book is built with it set, so that a site never depends on who built it.
    """
    return [("", BOOK)] if os.environ.get("ROOFLAB_REPLAY") else [("", BOOK), ("yours", own_root())]


def _digest(row: dict) -> str:
    text = json.dumps({key: value for key, value in row.items() if key != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass
class Record:
    """The rows of one experiment on one device, the runs that made them, and what was skipped with its reason."""

    device: str
    experiment: str
    runs: list[dict] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)
    skipped: list[dict] = field(default_factory=list)

    def has(self, case: dict, version: str) -> bool:
        """Return whether a row for this case and version is there."""
        return any(row["case"] == case and row["version"] == version for row in self.rows)

    def append(self, row: dict) -> None:
        """Add a row that carries its evidence; raise RecordError for one that does not."""
        row = row | {"digest": _digest(row)}
        _examine(row, len(self.runs), f"{self.device}/{self.experiment}")
        self.rows.append(row)

    def select(self, version: str | None = None, **case) -> list[dict]:
        """Return the rows of a version whose case has these values."""
        return [
            row
            for row in self.rows
            if (version is None or row["version"] == version)
            and all(row["case"].get(key) == value for key, value in case.items())
        ]

    def text(self) -> str:
        """Return the file's text: a header, then one row a line, so that a change shows as the lines it touched."""

        def lines(values: Iterable[dict]) -> str:
            return ",\n".join(json.dumps(value, ensure_ascii=False) for value in values)

        head = {"schema": SCHEMA, "device": self.device, "experiment": self.experiment, "digest": self._head_digest()}
        parts = ("runs", self.runs), ("skipped", self.skipped), ("rows", self.rows)
        return json.dumps(head)[:-1] + "".join(f',\n"{name}": [\n{lines(rows)}\n]' for name, rows in parts) + "}\n"

    def _head_digest(self) -> str:
        return _digest({name: getattr(self, name) for name in ("device", "experiment", "runs", "skipped")})

    def save(self, root: Path) -> Path:
        """Write the record under `root`, whole or not at all, and return its path."""
        path = root / self.device / f"{self.experiment}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
            ) as file:
                temporary = Path(file.name)
                try:
                    file.write(self.text())
                    file.flush()
                    os.fsync(file.fileno())
                    os.fchmod(file.fileno(), 0o644)  # a temporary file is for its owner's eyes only
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
            os.replace(temporary, path)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}; what was there before is untouched") from None
        return path


def _examine(row: dict, runs: int, where: str) -> None:
    """Raise RecordError unless `row` is complete, plausible, unedited, and proven correct."""
    where = f"{where}: row {json.dumps(row.get('case'))} {row.get('version')!r}"
    if missing := [key for key in _ROW_KEYS if key not in row]:
        raise RecordError(f"{where} lacks {', '.join(missing)}; measure it again")
    if row["digest"] != _digest(row):
        raise RecordError(f"{where} does not match its digest: it was damaged or edited; measure it again")
    times = [row["p20_s"], row["time_s"], row["p80_s"]]
    if not all(isinstance(t, (int, float)) and math.isfinite(t) and t > 0 for t in [*times, row["wall_s"]]):
        raise RecordError(f"{where} has the times {times}; they must be positive")
    if times != sorted(times):
        raise RecordError(f"{where}: its median does not lie between its percentiles")
    proof = row["check"]
    if not isinstance(proof, dict) or not {"max_error", "tolerance"} <= proof.keys():
        raise RecordError(f"{where} has no correctness check; a time without one is not kept")
    if not all(isinstance(proof[key], (int, float)) for key in ("max_error", "tolerance")):
        raise RecordError(f"{where} has a correctness check without numbers; measure it again")
    if not (math.isfinite(proof["max_error"]) and proof["max_error"] <= proof["tolerance"]):
        raise RecordError(f"{where} failed its correctness check: {proof['max_error']} > {proof['tolerance']}")
    if not (isinstance(row["run"], int) and 0 <= row["run"] < runs):
        raise RecordError(f"{where} names run {row['run']}, which the record does not have")


def read(path: Path) -> Record:
    """Return the record in a file, every row examined."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{path} is not a whole record ({error}); delete it and measure again") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise RecordError(f"{path} has schema {found!r}, this version reads {SCHEMA}; measure again with this version")
    for key, kind in {
        "device": str,
        "experiment": str,
        "digest": str,
        "runs": list,
        "skipped": list,
        "rows": list,
    }.items():
        if not isinstance(data.get(key), kind):
            raise RecordError(f"{path} lacks {key!r}, or it is no {kind.__name__}; delete it and measure again")
    if not all(isinstance(each, dict) for key in ("runs", "skipped", "rows") for each in data[key]):
        raise RecordError(f"{path} holds something else than rows and runs; delete it and measure again")
    record = Record(data["device"], data["experiment"], data["runs"], data["rows"], data["skipped"])
    if record._head_digest() != data["digest"]:
        raise RecordError(f"{path}: its runs do not match their digest: they were damaged or edited; measure again")
    if (record.device, record.experiment) != (path.parent.name, path.stem):
        raise RecordError(f"{path} is the record {record.device}/{record.experiment}; move it back to its place")
    for row in record.rows:
        _examine(row, len(record.runs), str(path))
    return record


def find(device: str, experiment: str, root: Path = BOOK) -> Record | None:
    """Return the record of `experiment` on `device` under `root`, or None where there is none."""
    path = root / device / f"{experiment}.json"
    return read(path) if path.is_file() else None


def load(device: str, experiment: str, root: Path = BOOK) -> Record:
    """Return the record of `experiment` on `device`, or raise RecordError with what there is."""
    record = find(device, experiment, root)
    if record is None:
        have = ", ".join(sorted(path.stem for path in (root / device).glob("*.json"))) or "none"
        raise RecordError(f"no record {experiment!r} for {device}; it has {have}; run: rooflab measure {experiment}")
    return record


def devices_with_records(root: Path = BOOK) -> list[str]:
    """Return the devices that have records under `root`."""
    return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
