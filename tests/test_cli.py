"""The command line without a GPU: it says so, lists, shows and compares."""

import pytest

from rooflab import cli, records, timing
from rooflab.records import Record

RUN = {"gpu": "My GPU", "measured": "2026-11-29T12:00Z", "driver": "1", "versions": {"torch": "2.11"}}


def row(case, version, time_s):
    base = {"case": case, "version": version, "run": 0, "kernel": None, "time_s": time_s, "p20_s": time_s}
    base |= {"p80_s": time_s, "wall_s": time_s, "samples": 11, "cache": "cold", "launches": 1, "observed": {}}
    return base | {"check": {"max_error": 0.0, "tolerance": 1e-3}}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path))
    record = Record("my-gpu", "gemm", [RUN])
    for book in records.load("h200-sxm", "gemm").select(dtype="bf16"):
        record.append(row(book["case"], book["version"], 2 * book["time_s"]))
    record.save(tmp_path)
    return record


def test_without_a_gpu_measure_says_so_and_exits_2(monkeypatch, capsys):
    monkeypatch.setattr(timing, "has_gpu", lambda: False)
    assert cli.main(["measure", "--quick"]) == 2
    assert "no CUDA GPU here" in capsys.readouterr().err


def test_an_unknown_experiment_is_named_with_the_choices(capsys):
    assert cli.main(["measure", "speed"]) == 1
    error = capsys.readouterr().err
    assert "unknown experiment 'speed'; choose from bandwidth" in error and error.count("\n") == 1


def test_list_names_experiments_and_records(mine, capsys):
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    assert "chain" in text and "records, yours: my-gpu: gemm" in text and "records, the book's: h200-sxm" in text


def test_show_prints_rates_from_the_ledger(mine, capsys):
    assert cli.main(["show", "gemm", "--device", "my-gpu"]) == 0
    out = capsys.readouterr().out
    first = mine.rows[0]
    assert out.count("\n") == 1 + len(mine.rows)
    flop_per_s = 2 * first["case"]["M"] ** 3 / first["time_s"]
    from rooflab.units import si

    assert si(flop_per_s, "op/s") in out


def test_compare_prints_the_ratio_of_times(mine, capsys):
    assert cli.main(["compare", "my-gpu", "h200-sxm"]) == 0
    out = capsys.readouterr().out
    assert out.count("0.50x") == len(mine.rows)
    assert cli.main(["compare", "my-gpu", "h200"]) == 0
    assert capsys.readouterr().out.count("0.50x") == len(mine.rows)
    assert cli.main(["compare", "h200-sxm", "my-gpu"]) == 1
    assert "no records of yours for h200-sxm" in capsys.readouterr().err


def test_a_damaged_record_is_an_error_of_one_line(mine, tmp_path, capsys):
    path = tmp_path / "my-gpu" / "gemm.json"
    path.write_text(path.read_text()[:200])
    assert cli.main(["show", "gemm", "--device", "my-gpu"]) == 1
    error = capsys.readouterr().err
    assert "gemm.json is not a whole record" in error and error.count("\n") == 1


def test_compare_of_ones_own_h200_reads_the_books_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path))
    record = Record("h200-sxm", "gemm", [RUN])
    for book in records.load("h200-sxm", "gemm").select(dtype="bf16"):
        record.append(row(book["case"], book["version"], 4 * book["time_s"]))
    record.save(tmp_path)
    assert cli.main(["compare", "h200-sxm", "h200"]) == 0
    assert capsys.readouterr().out.count("0.25x") == len(record.rows)
