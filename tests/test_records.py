"""Records: whole or not at all, every row with its evidence, nothing edited read back; the book's own are fresh."""

import errno
import json
import os

import pytest

from rooflab import records
from rooflab.records import Record, RecordError

RUN = {"gpu": "NVIDIA H200", "measured": "2026-11-29T12:00Z", "driver": "1", "versions": {"torch": "2.11"}}


def row(**changes):
    base = {"case": {"n": 4}, "version": "eager", "run": 0, "kernel": None, "time_s": 2e-6, "p20_s": 1e-6}
    base |= {"p80_s": 3e-6, "wall_s": 5e-6, "samples": 11, "cache": "cold", "launches": 1, "observed": {}}
    return base | {"check": {"max_error": 0.0, "tolerance": 1e-3}} | changes


@pytest.fixture
def record():
    made = Record("h200-sxm", "chain", [RUN])
    made.append(row())
    made.append(row(version="fused"))
    return made


def test_round_trip_and_one_row_a_line(record, tmp_path):
    path = record.save(tmp_path)
    again = records.read(path)
    assert (again.rows, again.runs, again.device) == (record.rows, record.runs, record.device)
    text = path.read_text()
    assert sum('"case"' in line for line in text.splitlines()) == 2
    assert again.has({"n": 4}, "fused") and not again.has({"n": 5}, "fused")
    assert [each["version"] for each in again.select(n=4)] == ["eager", "fused"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"check": {"max_error": 2.0, "tolerance": 1.0}}, "failed its correctness check"),
        ({"check": {"max_error": float("nan"), "tolerance": 1.0}}, "failed its correctness check"),
        ({"check": None}, "no correctness check"),
        ({"time_s": 0.0, "p20_s": 0.0}, "must be positive"),
        ({"time_s": float("inf"), "p80_s": float("inf")}, "must be positive"),
        ({"time_s": 9.0}, "between its percentiles"),
        ({"run": 1}, "names run 1, which the record does not have"),
    ],
)
def test_rows_without_evidence_are_refused(record, changes, said):
    before = list(record.rows)
    with pytest.raises(RecordError, match=said):
        record.append(row(version="new", **changes))
    assert record.rows == before


def test_a_row_lacking_a_key_is_refused(record):
    bad = row()
    del bad["wall_s"], bad["cache"]
    with pytest.raises(RecordError, match="lacks wall_s, cache"):
        record.append(bad)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"time_s": 2e-06', '"time_s": 1.5e-06', "does not match its digest: it was damaged or edited"),
        ('"max_error": 0.0', '"max_error": 1e-4', "does not match its digest"),
        ('"schema": 1', '"schema": 99', "has schema 99, this version reads 1"),
        ('"runs": [', '"walks": [', "lacks 'runs', or it is no list"),
        ('"gpu": "NVIDIA H200"', '"gpu": "FAKE B200"', "its runs do not match their digest"),
        ('"device": "h200-sxm"', '"device": "b200-hgx"', "its runs do not match their digest"),
        ('"skipped": [\n\n]', '"skipped": [\n1\n]', "holds something else than rows and runs"),
        ('"rows": [\n', '"rows": [\n1,\n', "holds something else than rows and runs"),
        ('"rows": [\n', '"rows": null, "more": [\n', "lacks 'rows', or it is no list"),
        ('"rows": [', '"rows": ', "is not a whole record"),
    ],
)
def test_damage_is_named_with_the_file(record, tmp_path, old, new, said):
    path = record.save(tmp_path)
    edit(path, old, new)
    with pytest.raises(RecordError, match=said) as error:
        records.read(path)
    assert "chain.json" in str(error.value) and "\n" not in str(error.value)


def test_half_a_file_is_not_read_back(record, tmp_path):
    path = record.save(tmp_path)
    path.write_text(path.read_text()[: len(path.read_text()) // 2])
    with pytest.raises(RecordError, match="not a whole record"):
        records.read(path)


def test_a_full_disk_leaves_what_was_there(record, tmp_path, monkeypatch):
    path = record.save(tmp_path)
    before = path.read_text()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    record.append(row(version="late"))
    with pytest.raises(RecordError, match="No space left on device; what was there before is untouched"):
        record.save(tmp_path)
    assert path.read_text() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no half-written file stays behind"


def test_an_interrupt_while_writing_leaves_what_was_there(record, tmp_path, monkeypatch):
    path = record.save(tmp_path)
    before = path.read_text()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record.save(tmp_path)
    assert path.read_text() == before and len(list(path.parent.iterdir())) == 1


def test_a_missing_record_names_those_there_are(record, tmp_path):
    record.save(tmp_path)
    with pytest.raises(RecordError, match="no record 'gemm' for h200-sxm; it has chain; run: rooflab measure gemm"):
        records.load("h200-sxm", "gemm", tmp_path)


BOOK_RECORDS = sorted(records.BOOK.glob("*/*.json"))


@pytest.mark.parametrize("path", BOOK_RECORDS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_books_records_are_whole_and_fresh_and_name_nobody(path):
    from rooflab.experiments import EXPERIMENTS, require_fresh
    from rooflab.experiments.base import Gpu
    from rooflab.experiments.campaign import refuse_above_roof

    record = require_fresh(records.read(path))
    assert (record.device, record.experiment) == (path.parent.name, path.stem)
    assert record.rows and record.experiment in EXPERIMENTS
    run = record.runs[-1]
    for key in ("gpu", "driver", "power_limit_w", "versions", "measured", "operands", "l2_bytes"):
        assert run[key], key
    text = path.read_text().lower()
    assert not any(word in text for word in ("uuid", "hostname", "/home", "/root", "/work", "@"))
    # No point above its roof: asked again here, with today's peaks.
    gpu = Gpu(run["memory_bytes"], run["l2_bytes"], int(run["compute_capability"].replace(".", "")))
    experiment = EXPERIMENTS[record.experiment]
    for each in record.rows:
        demand = experiment.demand(each["case"], each["version"])
        refuse_above_roof(record.device, gpu, demand, each["case"], each["time_s"])
        # What is slow the first time is the host's work, and no clock is read meanwhile.
        assert experiment.once or each["observed"]["sm_clock_hz"] > 1e8


def test_every_experiment_has_its_record():
    from rooflab.experiments import EXPERIMENTS

    found = {path.stem for path in BOOK_RECORDS if path.parent.name == "h200-sxm"}
    how = "run `rooflab measure NAME --out src/rooflab/data/measurements` on an H200, or ask a maintainer to"
    assert found >= set(EXPERIMENTS), f"no record for {sorted(set(EXPERIMENTS) - found)}: {how}"
    assert found <= set(EXPERIMENTS), f"no experiment for {sorted(found - set(EXPERIMENTS))}: delete its record"


def test_json_stays_json(record):
    json.loads(record.text())


def test_a_record_in_anothers_place_is_refused(record, tmp_path):
    path = record.save(tmp_path)
    other = path.with_name("gemm.json")
    other.write_text(path.read_text())
    with pytest.raises(RecordError, match="is the record h200-sxm/chain; move it back"):
        records.read(other)


def test_a_check_without_numbers_is_refused(record):
    with pytest.raises(RecordError, match="check without numbers"):
        record.append(row(check={"max_error": "small", "tolerance": 1.0}))
