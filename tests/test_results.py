"""What a page shows of an experiment: the book's record replayed, the reader's own beside it, never a stale one."""

import pytest

from rooflab import kernels, records, timing
from rooflab.experiments import EXPERIMENTS, results
from rooflab.records import Record, RecordError, StaleRecord
from rooflab.widgets import fusion_scenario


@pytest.fixture(autouse=True)
def nobody_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path))
    monkeypatch.delenv("ROOFLAB_REPLAY", raising=False)
    monkeypatch.setattr(timing, "has_gpu", lambda: False)
    return tmp_path


def mine(root, experiment, device="my-gpu", factor=3):
    book = records.load("h200-sxm", experiment)
    run = book.runs[-1] | {"gpu": "My GPU", "measured": "2027-01-02T03:04Z"}
    record = Record(device, experiment, [run])
    for row in book.rows:
        times = {key: factor * row[key] for key in ("time_s", "p20_s", "p80_s", "wall_s")}
        record.append({k: v for k, v in row.items() if k != "digest"} | times | {"run": 0})
    record.save(root)
    return record


def made_stale(root, record, most=None):
    """Save and return the record with its first rows, or all, of another kernel."""
    old = Record(record.device, record.experiment, record.runs)
    for number, row in enumerate(record.rows):
        kernel = {"module": "elementwise", "hash": "0"} if most is None or number < most else row["kernel"]
        old.append({k: v for k, v in row.items() if k != "digest"} | {"kernel": kernel})
    old.save(root)
    return old


def test_the_banner_says_replayed_from_what_and_when():
    text = results("norm").banner()
    assert text.startswith("norm: replayed from a record. NVIDIA H200, 2026-11-30, PyTorch 2.11.0, Triton 3.6.0")
    assert "; NVIDIA H200, 2026-11-29, PyTorch" in text, "of both runs that its rows name"
    assert "your" not in text and results("norm")._repr_html_().startswith('<p class="rooflab-banner">')


def test_ones_own_record_stands_beside_the_books(nobody_measured):
    mine(nobody_measured, "chain")
    shown = results("chain")
    assert "Beside it, your record: My GPU, 2027-01-02" in shown.banner()
    table = shown.table("n", ("eager", "fused"), k=4)
    assert sum("(yours)" in row[0] for row in table.rows) == len(table.rows) / 2
    book, own = (next(row for row in table.rows if row[0] == f"268435456{whose}") for whose in ("", " (yours)"))
    assert float(own[2].split()[0]) == pytest.approx(3 * float(book[2].split()[0]), rel=1e-3)
    series = shown.ratios("unfused", "fused", by="n", k=8)
    assert series.keys() == {"h200-sxm", "yours"}
    assert series["yours"][1] == pytest.approx(series["h200-sxm"][1])


def test_one_row_means_one():
    norm = results("norm")
    assert norm.one("eager", dtype="bf16", rows=65536)["launches"] == 3
    with pytest.raises(RecordError, match="8 rows of 'eager'"):
        norm.one("eager")
    with pytest.raises(RecordError, match="0 rows of 'slow'"):
        norm.one("slow", rows=1)


def test_a_stale_record_is_not_shown(monkeypatch):
    monkeypatch.setattr(kernels, "fingerprint", lambda module: "another")
    with pytest.raises(
        StaleRecord,
        match="measured with another layernorm; run: rooflab measure norm --out src/rooflab/data/measurements",
    ):
        results("norm")


def test_an_unknown_experiment_is_named_with_the_choices():
    with pytest.raises(RecordError, match="unknown experiment 'speed'; choose from bandwidth"):
        results("speed")


def test_a_built_site_shows_nobodys_own_records(nobody_measured, monkeypatch):
    mine(nobody_measured, "chain", device="h200-sxm")
    assert results("chain").own and any(point.label.startswith("yours: ") for point in fusion_scenario().points)
    monkeypatch.setenv("ROOFLAB_REPLAY", "1")
    monkeypatch.setattr(timing, "has_gpu", lambda: True)
    assert results("chain").own is None and not results("chain").live
    assert not any(point.label.startswith("yours") for point in fusion_scenario().points)


def test_ones_own_stale_record_is_named_and_not_shown(nobody_measured):
    total = len(made_stale(nobody_measured, mine(nobody_measured, "chain")).rows)
    shown = results("chain")
    assert shown.own is None
    assert shown.banner().endswith(
        f"Not shown: {total} of your {total} rows of my-gpu/chain, which are of an older kernel; "
        "to measure them again, run on that GPU: rooflab measure chain"
    )


@pytest.mark.parametrize("gpu", [False, True])
def test_of_ones_own_record_the_fresh_rows_are_shown_with_a_gpu_or_without(nobody_measured, fake, monkeypatch, gpu):
    """The experiment has no quick cases, so with a GPU nothing is measured either."""
    monkeypatch.setattr(timing, "has_gpu", lambda: gpu)
    monkeypatch.setitem(EXPERIMENTS, "chain", fake.experiment(cases=lambda gpu, quick: []))
    record = mine(nobody_measured, "chain", device="h200-sxm")
    made_stale(nobody_measured, record, most=2)
    shown = results("chain")
    assert shown.own.rows == record.rows[2:] and not shown.live
    assert "Beside it, your record: My GPU" in shown.banner()
    assert f"Not shown: 2 of your {len(record.rows)} rows of h200-sxm/chain" in shown.banner()
    made_stale(nobody_measured, record)
    shown = results("chain")
    assert shown.own is None and f"Not shown: {len(record.rows)} of your" in shown.banner()
    assert records.load("h200-sxm", "chain", nobody_measured).rows, "they stay on disk"


def test_what_was_measured_here_stands_without_the_stale_rows_beside_it(nobody_measured, fake, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "chain", fake.experiment())
    total = len(made_stale(nobody_measured, mine(nobody_measured, "chain", device="h200-sxm")).rows)
    shown = results("chain")
    assert [(row["case"], row["version"]) for row in shown.own.rows] == [({"n": 1}, "eager"), ({"n": 1}, "fused")]
    assert shown.live and "Beside it, measured here: NVIDIA H200" in shown.banner()
    assert f"Not shown: {total} of your {total + 2} rows" in shown.banner()


def test_where_all_was_skipped_there_is_no_own_record(nobody_measured, fake, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "chain", fake.experiment(needs=lambda gpu, case: "needs sm_100"))
    shown = results("chain")
    assert shown.own is None and "Beside it" not in shown.banner()
