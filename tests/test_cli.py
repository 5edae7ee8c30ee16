"""The command line without a GPU: it says so, lists, shows and compares, and counts the steps of models."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from rooflab import cli, hardware, models, records, step, timing
from rooflab.ledger import LINEAR_RIDGE_TOKENS, ROOFLINE, WORKLOADS
from rooflab.records import Record
from rooflab.roofline import Roofline
from rooflab.units import si

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
    assert out.count("\n") == 2 + len(mine.rows)
    flop_per_s = 2 * first["case"]["M"] ** 3 / first["time_s"]
    from rooflab.units import si

    assert si(flop_per_s, "op/s") in out


def test_show_and_compare_print_columns_as_wide_as_their_cells(tmp_path, monkeypatch, capsys):
    """And the versions of the packages that were there, in words."""
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path))
    run = RUN | {"versions": {"torch": "2.11.0", "triton": "3.6.0", "rooflab": None}}
    for gpu, factor in (("my-gpu", 1), ("another", 12)):
        record = Record(gpu, "exponential", [run])
        for repeats, time_s in ((64, 70.91e-6), (1024, 1.5e-3)):
            record.append(row({"n": 4, "repeats": repeats}, "triton", factor * time_s))
        record.save(tmp_path)
    assert cli.main(["show", "exponential", "--device", "my-gpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["my-gpu: My GPU, 2026-11-29T12:00Z, driver 1", "torch 2.11.0, triton 3.6.0"]
    assert [line[:49] for line in lines[2:]] == [
        "n=4 repeats=64    triton  70.91 µs  wall 70.91 µs",
        "n=4 repeats=1024  triton    1.5 ms    wall 1.5 ms",
    ]
    assert cli.main(["compare", "my-gpu", "another"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "exponential  n=4 repeats=64    triton  70.91 µs  12.00x",
        "exponential  n=4 repeats=1024  triton    1.5 ms  12.00x",
    ]


def test_show_of_a_record_in_which_all_was_skipped_says_so(mine, tmp_path, capsys):
    skip = {"case": {"L": 512}, "versions": ["fused"], "reason": "out of memory"}
    Record("my-gpu", "flash", skipped=[skip]).save(tmp_path)
    assert cli.main(["show", "flash"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "my-gpu: all was skipped, so there are no rows",
        "skipped {'L': 512} fused: out of memory",
    ]


def test_compare_prints_the_ratio_of_times(mine, capsys):
    assert cli.main(["compare", "my-gpu", "h200-sxm"]) == 0
    out = capsys.readouterr().out
    assert out.count("0.50x") == len(mine.rows)
    assert cli.main(["compare", "my-gpu", "h200"]) == 0
    assert capsys.readouterr().out.count("0.50x") == len(mine.rows)
    assert cli.main(["compare", "h200-sxm", "my-gpu"]) == 1
    assert "no records of yours for h200-sxm" in capsys.readouterr().err


def test_compare_takes_the_folder_that_one_is_in(mine, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path / "my-gpu")
    assert cli.main(["compare", ".", "h200-sxm"]) == 0
    out = capsys.readouterr().out
    assert out.count("0.50x") == len(mine.rows) and "above 1, my-gpu is faster" in out


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


def test_compare_goes_on_where_the_other_has_no_record(mine, tmp_path, capsys):
    extra = Record("my-gpu", "speed", [RUN])
    extra.append(row({"n": 1}, "eager", 1e-3))
    extra.save(records.own_root())
    assert cli.main(["compare", "my-gpu", "h200-sxm"]) == 0
    out = capsys.readouterr().out
    assert "speed: h200-sxm has no record of it" in out and out.count("0.50x") == len(mine.rows)


# The model command ---------------------------------------------------------------------------------------------------


def ask(*arguments):
    """Return the exit status, the output and the errors of `rooflab model`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(["model", *map(str, arguments)])
        except SystemExit as stop:
            status = stop.code
    return status, out.getvalue(), err.getvalue()


def text_of(*arguments):
    status, out, err = ask(*arguments)
    assert (status, err) == (0, "")
    return out


def numbers_of(*arguments):
    return json.loads(text_of(*arguments, "--json"))


def test_llama_2_7b_has_the_numbers_of_an_independent_count():
    found = numbers_of("llama-2-7b", "--batch", 1, "--context", 4096)
    totals, memory = found["totals"], found["memory"]
    assert totals["flop"] == pytest.approx(15.36e9, rel=5e-4)
    assert totals["weights_bytes"] == pytest.approx(13.21e9, rel=5e-4)
    assert totals["cache_bytes"] == pytest.approx(2.147e9, rel=5e-4)
    assert memory["cache_bytes_per_token"] == 512 * 1024
    assert totals["time_s"] == pytest.approx(4.59e-3, rel=1e-3)
    assert totals["tokens_per_s"] == pytest.approx(218, rel=1e-3)
    assert found["linear_ridge_tokens"] == pytest.approx(295.3, rel=1e-3)
    text = text_of("llama-2-7b")
    for said in ("15.36 GFLOP in", "13.21 GB", "4.589 ms", "217.9 tokens/s", "512 KiB per token", "295.3 tokens"):
        assert said in text, said


def test_llama_2_70b_does_not_fit_into_one_h100():
    text = text_of("llama-2-70b")
    for said in ("148.2 GFLOP in", "320 KiB per token", "138 GB (128.5 GiB)", "80 GB (74.51 GiB)", "at least 2 GPUs"):
        assert said in text, said
    assert numbers_of("llama-2-70b")["memory"]["most_sequences"] == 0
    on_two = numbers_of("llama-2-70b", "--gpus", 2)
    # (2 x 80 - 137.95) GB over 1.342 GB for each sequence.
    assert on_two["memory"]["most_sequences"] == 16
    assert "at most 16 sequences of 4096 tokens" in text_of("llama-2-70b", "--gpus", 2)


def test_the_rows_are_the_steps_operations_and_add_up():
    found = numbers_of("mixtral-8x7b", "--batch", 8, "--device", "h200-sxm", "--new-tokens", 3)
    want = step.decode(models.model("mixtral-8x7b"), batch=8, context=4096, new_tokens=3)
    roofline = Roofline.of(hardware.device("h200-sxm"), "bf16")
    totals, rows = found["totals"], found["operations"]
    assert [row["title"] for row in rows] == [each.title for each in want.operations]
    for row, each in zip(rows, want.operations, strict=True):
        bound = roofline.bound(each.demand())
        assert (row["times"], row["flop"], row["bytes"]) == (each.times, each.flop, each.moved())
        assert row["time_s"] == pytest.approx(each.times * bound.time_s)
        assert row["bound_by"] == [bound.roof.label]
        assert row["bytes"] == pytest.approx(sum(row[f"{kind}_bytes"] for kind in ("weights", "cache", "activations")))
        assert row["intensity_flop_per_byte"] == pytest.approx(each.demand().intensity_flop_per_byte())
    for key in ("bytes", "weights_bytes", "cache_bytes", "activations_bytes", "time_s"):
        assert totals[key] == pytest.approx(sum(row[key] for row in rows)), key
    assert totals["flop"] + totals["vector_flop"] == pytest.approx(sum(row["flop"] for row in rows))
    assert totals["overlapped_time_s"] == pytest.approx(roofline.bound(want.demand()).time_s)
    assert totals["overlapped_time_s"] <= totals["time_s"]
    assert totals["tokens_per_s"] == pytest.approx(8 * 3 / totals["time_s"])
    assert "if every new token is accepted" in text_of("mixtral-8x7b", "--new-tokens", 3)
    assert "accepted" not in text_of("mixtral-8x7b")


def test_the_text_shows_the_numbers_of_the_json():
    arguments = ("gemma-2-9b", "--batch", 4, "--gpus", 2)
    found, text = numbers_of(*arguments), text_of(*arguments)
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    for row in found["operations"]:
        line = lines[row["title"]]
        for key, unit in (("flop", "FLOP"), ("weights_bytes", "B"), ("cache_bytes", "B"), ("time_s", "s")):
            assert (si(row[key], unit) if row[key] else "-") in line
    assert si(found["totals"]["link_bytes"], "B") + " out" in lines["link"]
    assert "21 of 42 layers keep the last 4096 tokens" in lines["KV cache"]
    for sentence in found["model"]["assumed"]:
        assert f"assumed: {sentence}" in text
    assert found["model"]["assumed"]
    assert "link" not in {line.split("  ")[0] for line in text_of("gemma-2-9b").splitlines()}


def test_a_prefill_is_bound_by_the_matrix_units_and_says_when_the_first_token_comes():
    whole = numbers_of("llama-2-7b", "--prefill", "--context", 2048)
    assert whole["totals"]["bound_by"] == ["bf16 matrix peak"]
    assert whole["totals"]["time_to_first_token_s"] == whole["totals"]["time_s"]
    chunked = numbers_of("llama-2-7b", "--prefill", "--context", 2048, "--chunk", 512)
    assert chunked["totals"]["steps"] == 4 and chunked["totals"]["tokens"] == 2048
    steps = step.prefill(models.model("llama-2-7b"), prompt=2048, chunk=512)
    assert chunked["totals"]["flop"] == pytest.approx(sum(each.flop for each in steps))
    assert chunked["totals"]["weights_bytes"] > 3.9 * whole["totals"]["weights_bytes"]
    assert {row["title"]: row["times"] for row in chunked["operations"]}["attention"] == 4 * 32
    text = text_of("llama-2-7b", "--prefill", "--context", 2048, "--chunk", 512)
    assert "first token  after" in text and "in chunks of 512" in text
    assert "first token" not in text_of("llama-2-7b")


def test_formats_and_math_reach_the_step():
    found = numbers_of(
        "llama-3-8b", "--weights", "int4-grouped", "--cache", "fp8", "--math", "fp8", "--attention", "apart"
    )
    precision = step.Precision(weights="int4-grouped", cache="fp8", math="fp8")
    want = step.decode(models.model("llama-3-8b"), context=4096, precision=precision, attention="apart")
    assert found["totals"]["bytes"] == want.moved()
    gpu = hardware.device("h100-sxm")
    ridge = LINEAR_RIDGE_TOKENS(P=gpu.peak_flop_per_s("fp8"), beta=gpu.bytes_per_s(), b_w=precision.weight_bytes)
    assert found["linear_ridge_tokens"] == ridge
    assert found["memory"]["weight_bytes"] == step.weight_bytes(models.model("llama-3-8b"), precision)
    assert found["memory"]["cache_bytes_per_token"] == 64 * 1024
    assert (found["options"]["weights"], found["options"]["activations"]) == ("int4-grouped", "bf16")


def test_a_gpu_keeps_one_key_value_head_at_least_and_a_whole_latent():
    def most(*arguments):
        memory = numbers_of(*arguments)["memory"]
        return (
            memory["most_sequences"],
            memory["capacity_bytes"],
            memory["weight_bytes"],
            memory["cache_bytes_per_sequence"],
        )

    sequences, capacity, weights, cache = most("llama-2-70b", "--gpus", 16)  # 8 key-value heads
    assert sequences == int((capacity - weights / 16) / (cache / 8))
    sequences, capacity, weights, cache = most("deepseek-v3", "--gpus", 32)
    assert sequences == int((capacity - weights / 32) / cache)


def test_without_a_vector_peak_memory_alone_bounds_and_one_line_says_so():
    text = text_of("llama-2-7b", "--device", "tpu-v5e", "--prefill", "--context", 256)
    assert text.count("has no vector peak on record") == 1
    rows = numbers_of("llama-2-7b", "--device", "tpu-v5e")["operations"]
    assert next(row for row in rows if row["title"] == "norms")["bound_by"] == ["HBM2 bandwidth"]
    assert "no vector peak" not in text_of("llama-2-7b")
    assert "102 GB (95 GiB)" in text_of("llama-2-7b", "--device", "tpu-v5p")  # its vendor states GiB


def test_a_context_beyond_the_models_is_counted_and_warned_of():
    assert "context is 4097; the model was trained for 4096 tokens" in text_of("llama-2-7b", "--context", 4097)
    assert "trained for" not in text_of("llama-2-7b", "--context", 4096)


def line(text, name):
    """Return the lines of a summary's row, from its name on, as one."""
    return re.search(rf"^{name} .*(?:\n  +.*)*", text, re.MULTILINE)[0]


H200_BYTES = 150109880320  # what the driver of the book's H200 reports; its data sheet says 141 GB


def test_what_fits_goes_by_the_record_of_the_gpu_where_there_is_one():
    # 141.1 GB of weights: more than the data sheet's 141 GB, less than the driver's 150.1 GB.
    memory = numbers_of("llama-3-70b", "--device", "h200-sxm")["memory"]
    assert (memory["capacity_bytes"], memory["vendor_capacity_bytes"]) == (H200_BYTES, 141e9)
    assert (memory["capacity_basis"], memory["least_gpus"]) == ("measured", 1)
    weights = step.weight_bytes(models.model("llama-3-70b"))
    assert 141e9 < weights < H200_BYTES
    # 80 layers, 8 key-value heads of 128, keys and values in 2 bytes.
    assert memory["most_sequences"] == int((H200_BYTES - weights) // (80 * 8 * 128 * 2 * 2 * 4096)) > 0
    text = text_of("llama-3-70b", "--device", "h200-sxm")
    assert f"at most {memory['most_sequences']} sequences" in line(text, "fits")
    assert line(text, "fits").endswith("by the book's record of this GPU")
    assert "150.1 GB (139.8 GiB) on each GPU, as the driver reported it" in line(text, "memory")
    assert "its vendor states 141 GB" in line(text, "memory")


def test_what_fits_says_when_it_goes_by_the_vendors_figure():
    by_vendor = "by the vendor's figure; a driver may report up to 7 % more"
    assert numbers_of("llama-2-70b")["memory"]["capacity_basis"] == "paper"
    for arguments, said in (
        (["llama-2-70b"], "no: the weights need at least 2 GPUs that share the heads evenly, "),
        (["llama-2-70b", "--gpus", 2], "at most 16 sequences of 4096 tokens beside the weights, "),
    ):
        assert line(text_of(*arguments), "fits").endswith(said + by_vendor)
    # Stated in GiB, the figure is the driver's already.
    fits = line(text_of("llama-2-7b", "--device", "tpu-v5p"), "fits")
    assert fits.endswith("beside the weights, by the vendor's figure")
    # The book's card bears the 7 % out.
    assert 1.06 < H200_BYTES / 141e9 < 1.07 < 2**30 / 1e9 < 1.075


def test_the_gpus_that_the_weights_need_share_the_heads(tmp_path):
    for arguments, least in (
        (["llama-2-70b", "--device", "l4"], 8),  # 137.95 GB in 24 GB each: 5.7, and 6 does not divide 64 heads
        (["llama-2-70b", "--weights", "fp32", "--head", "fp32"], 4),  # 275.9 GB in 80 GB each: 3.4
    ):
        memory = numbers_of(*arguments)["memory"]
        assert memory["least_gpus"] == least
        assert f"at least {least} GPUs" in line(text_of(*arguments), "fits")
        assert numbers_of(*arguments, "--gpus", least)["options"]["gpus"] == least
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY | {"num_attention_heads": 1, "vocab_size": 10**9}))  # 128 GB twice
    assert numbers_of(config)["memory"]["least_gpus"] is None
    assert "no: the weights need more GPUs than can share 1 head evenly, by" in line(text_of(config), "fits")


def test_a_model_of_experts_says_how_they_are_assumed_to_be_picked():
    picks = "each token picks its experts at random, all equally likely"
    assert picks in WORKLOADS["experts"].assumes
    assert any(picks in note for note in numbers_of("mixtral-8x7b")["notes"])
    assert picks in text_of("deepseek-v3") and picks not in text_of("llama-2-7b")
    assert not any(picks in note for note in numbers_of("llama-2-7b")["notes"])


def test_the_ridge_counts_weights_only_and_is_further_for_an_expert():
    # H100: 989.4 TFLOP/s over 3.35 TB/s, 2 FLOP for each weight of 2 bytes.
    ridge = 989.4e12 / 3.35e12
    dense = line(text_of("llama-2-7b"), "ridge")
    assert dense.endswith("counting weights only, a linear layer meets it at 295.3 tokens per step")
    assert numbers_of("llama-2-7b")["expert_ridge_tokens"] is None
    for name, experts, top_k in (("mixtral-8x7b", 8, 2), ("deepseek-v3", 256, 8)):
        found, text = numbers_of(name), line(text_of(name), "ridge")
        assert found["linear_ridge_tokens"] == pytest.approx(ridge)
        assert found["expert_ridge_tokens"] == pytest.approx(ridge * experts / top_k)
        assert f"each routed expert at {si(ridge * experts / top_k)}: a token picks {top_k} of {experts}" in text


def test_a_measured_ceiling_bounds_nothing():
    for more in ((), ("--prefill",)):
        paper, measured = (text_of("llama-2-7b", "--device", "h200-sxm", *more, *m) for m in ((), ("--measured",)))
        assert line(paper, "time").count("at least") == 2 and "at most" in line(paper, "rate")
        for name in ("time", "rate", "first token")[: 3 if more else 2]:
            assert "about" in line(measured, name) and "about" not in line(paper, name)
            assert not re.search("at least|at most", line(measured, name))
    assert "after at least" in line(paper, "first token")


def test_help_and_the_readme_list_every_format(capsys):
    status, out, _ = ask("--help")
    said = " ".join(out.split())
    formats = ", ".join(step.STORED_BYTES)
    assert status == 0
    for name in ("weights", "cache", "activations", "head"):
        assert f"number format of the {name}: {formats}; default: bf16" in said
    assert "default: h100-sxm; an unknown name lists them all" in said
    assert all(each in ask("gpt2", "--device", "none")[2] for each in hardware.devices())
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    row = re.search(r"^\| `--weights`, .*$", readme, re.MULTILINE)[0].split("|")[2]
    assert re.findall(r"`(.*?)`", row) == list(step.STORED_BYTES) and "..." not in row


def test_measured_roofs_where_they_are_on_record():
    found = numbers_of("llama-2-7b", "--device", "h200-sxm", "--measured")
    assert {roof["basis"] for roof in found["device"]["roofs"] if roof["key"] != "vector"} == {"measured"}
    assert found["totals"]["time_s"] > numbers_of("llama-2-7b", "--device", "h200-sxm")["totals"]["time_s"]


TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"intermediate_size": 128, "vocab_size": 100}


def test_a_config_is_a_file_or_a_folder_and_may_be_read_as_another_family(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"model_type": "my-llama"}))
    text = text_of(tmp_path, "--as", "llama")
    assert text == text_of(tmp_path / "config.json", "--as", "llama")
    assert "95,040 parameters" in text and "512 B per token" in text and "as_type says so" in text


def test_bad_input_is_one_line_that_names_the_field_and_the_file(tmp_path):
    (tmp_path / "list.json").write_text("{")
    (tmp_path / "odd.json").write_text(json.dumps(TINY | {"hidden_size": 63}))
    (tmp_path / "heads.json").write_text(json.dumps(TINY | {"num_key_value_heads": 3}))
    for arguments, said in (
        (["llama-2-7"], "unknown 'llama-2-7', did you mean 'llama-2-7b'?"),
        ([tmp_path / "none.json"], "No such file"),
        ([tmp_path / "list.json"], "list.json: not valid JSON: Expecting property name"),
        ([tmp_path / "list.json"], "line 1 column 2 (char 1); correct the file there"),
        ([tmp_path / "odd.json"], "odd.json: head_dim: missing, and the hidden size 63"),
        ([tmp_path / "heads.json"], "heads.json: num_attention_heads: 4 is not a multiple"),
        (["gpt2", "--as", "gtp2"], "as_type: unknown 'gtp2', did you mean 'gpt2'?"),
        (["gpt2", "--device", "h100"], "device: unknown 'h100', did you mean 'h100-sxm'?"),
        (["gpt2", "--device", "a100-80gb-sxm", "--math", "fp8"], "a100-80gb-sxm has no 'fp8' peak; it has: bf16"),
        (["gpt2", "--measured"], "no measured ceilings for NVIDIA H100 SXM5"),
        (["gpt2", "--batch", "0"], "batch is 0; it must be a whole number from 1"),
        (["gpt2", "--batch", "many"], "batch is 'many'; it must be"),
        (["gpt2", "--context", "-1"], "context is -1; it must be"),
        (["gpt2", "--context", "4", "--new-tokens", "5"], "new_tokens is 5; it must be a whole number from 1 to 4"),
        (["gpt2", "--weights", "int4"], "weights: unknown format 'int4'; choose from"),
        (["gpt2", "--attention", "flash"], "attention is 'flash'; choose from fused, apart"),
        (
            ["llama-2-7b", "--gpus", "3"],
            "gpus is 3; 32 query and 32 key-value heads cannot be shared evenly; choose from 1, 2, 4",
        ),
        (["gpt2", "--chunk", "9"], "chunk is for a prompt; add --prefill"),
        (["gpt2", "--prefill", "--chunk", "0"], "chunk is 0; it must be"),
        (["gpt2", "--prefill", "--context", "10000", "--chunk", "9"], "more than 1000 chunks; give at least 10"),
        (["gpt2", "--prefill", "--new-tokens", "2"], "new_tokens is for decoding"),
    ):
        status, out, err = ask(*arguments)
        assert (status, out, err.count("\n")) == (1, "", 1), (arguments, err)
        assert err.startswith("rooflab: ") and said in err, (arguments, err)


def value(*usual):
    """Return mostly sensible values of an option, and now and then one that nobody would give."""
    odd = st.integers().map(str) | st.text(max_size=5)
    return st.integers(0, 15).flatmap(lambda i: st.sampled_from([str(each) for each in usual]) if i else odd)


OPTIONS = {
    "--device": value(*hardware.devices()),
    "--batch": value(1, 8, 0, 10**9),
    "--context": value(1, 4096, 10**9),
    "--weights": value(*step.STORED_BYTES),
    "--cache": value(*step.STORED_BYTES),
    "--activations": value(*step.STORED_BYTES),
    "--head": value(*step.STORED_BYTES),
    "--math": value("bf16", "bf16", "fp16", *hardware.DTYPES),
    "--gpus": value(1, 2, 3, 8, 64),
    "--attention": value("fused", "apart"),
}
# These fit together or with the model by chance only.
RARE = {"--new-tokens": value(1, 4), "--chunk": value(1, 100, 4096), "--as": value(*models.FAMILIES)}


@given(
    config=value(*models.models()),
    chosen=st.fixed_dictionaries({}, optional=OPTIONS),
    rare=st.just({}) | st.fixed_dictionaries({}, optional=RARE),
    flags=st.sets(st.sampled_from(["--prefill", "--json"])) | st.just({"--measured"}),
)
@example("gpt2", {"--context": "9" * 5000}, {}, set())
@example("gpt2", {"--context": "4096"}, {"--chunk": "100"}, {"--prefill"})
@example("\0", {}, {}, set())
@example("/", {}, {}, set())
@settings(max_examples=200, deadline=None)
def test_whatever_the_options_there_is_a_report_or_one_line(config, chosen, rare, flags):
    options = [f"{name}={given}" for name, given in (chosen | rare).items()]
    status, out, err = ask(*options, *flags, "--", config)
    assert status in (0, 1)
    event(f"status {status}")
    if status:
        assert err.startswith("rooflab: ") and err.count("\n") == 1 and not out
    else:
        assert not re.search(r"\b(nan|inf|infinity)\b", out.lower()) and not err
        assert "--json" not in flags or json.loads(out)["totals"]["time_s"] > 0


IMPORTED = """
import sys
from rooflab.cli import main
main(["model", "llama-2-7b"])
print(*sorted({"torch", "triton", "numpy", "matplotlib", "IPython"} & set(sys.modules)), file=sys.stderr)
"""


def test_the_model_command_imports_neither_torch_nor_numpy():
    run = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert (run.returncode, run.stderr.strip()) == (0, "")
    assert run.stdout.startswith("Llama 2 7B")


FORMULAS = [*ROOFLINE.values(), *(each for work in WORKLOADS.values() for each in work.formulas)]


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
def test_a_formula_says_the_same_of_numbers_and_of_arrays(formula):
    """Numbers alone take a way past NumPy."""
    for least in range(3):
        values = {symbol.name: (i + least) % 3 + 1.5 for i, symbol in enumerate(formula.symbols)}
        values |= {"n_e": 8} if "n_e" in values else {}  # no less than k_e
        arrays = {name: np.array([value, value]) for name, value in values.items()}
        assert np.broadcast_to(formula(**arrays), 2)[1] == pytest.approx(formula(**values), rel=1e-14)


# It takes 0.46 s on two idle cores, 0.28 s of them for SymPy; the rest is room for a slower or busier machine.
LIMIT_S = 0.75


def test_the_model_command_answers_at_once():
    """Processor time: a machine that is busy otherwise must not fail this."""
    times_s = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-m", "rooflab.cli", "model", "llama-2-7b"], check=True, capture_output=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        times_s.append(spent)
    assert 0.1 < min(times_s) < LIMIT_S, times_s
