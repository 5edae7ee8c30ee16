"""The panel, on a fake GPU and without a kernel: what it measures, keeps, shows and moves."""

import re
import sys
import threading
import types

import ipywidgets
import pytest

from rooflab import records, timing
from rooflab.experiments import EXPERIMENTS, Campaign, panel
from rooflab.ledger import Demand
from rooflab.records import RecordError
from rooflab.widgets import RooflineExplorer, roofline_scenario


@pytest.fixture(autouse=True)
def own(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path))
    return tmp_path


@pytest.fixture
def explorer():
    return RooflineExplorer(roofline_scenario(), device="h200-sxm")


def finished(measuring):
    measuring.run()
    assert measuring.join(30), "the run did not end"
    return measuring


def choose(measuring, field, *values):
    measuring.fields[field].value = [(value,) for value in values]


def cells(measuring):
    rows = re.findall(r"<tr>(<td>.*?)</tr>", measuring.output.value)
    return [re.findall("<td>(.*?)</td>", row) for row in rows]


def yours(explorer):
    return [point for point in explorer.points if point["label"].startswith("yours")]


def test_run_measures_the_chosen_cases_and_versions_only(fake, own):
    shown = panel(fake.experiment())
    assert isinstance(shown, ipywidgets.Widget)
    assert shown.fields["n",].value == ((1,),), "at first it stands on the quick cases"
    choose(shown, ("n",), 1, 3)
    shown.versions.value = ["fused"]
    finished(shown)
    assert fake.prepared == [(1, ("fused",)), (3, ("fused",))]
    assert [(row["case"]["n"], row["version"]) for row in shown.rows] == [(1, "fused"), (3, "fused")]
    assert len(records.load("h200-sxm", "chain", own).rows) == 2


def test_fields_that_vary_together_share_a_control(fake):
    assert list(panel("gemm").fields) == [("dtype",), ("M", "N", "K")]
    latency = panel(EXPERIMENTS["latency"]).fields["bytes", "cache"]
    assert ("262,144 · warm", (2**18, "warm")) in latency.options
    assert list(panel("chain").fields) == [("dtype",), ("n",), ("k",)]
    attention = panel("attention")
    assert list(attention.fields) == [("L",)] and "dtype = bf16" in attention.children[0].value
    assert list(panel("launch").fields) == []


def test_nothing_chosen_is_one_line_and_run_works_again(fake):
    shown = panel(fake.experiment())
    shown.versions.value = []
    with pytest.raises(RecordError, match="choose at least one version"):
        shown.chosen()
    finished(shown)
    assert "nothing to measure: choose at least one version" in shown.status.value and not fake.prepared
    shown.versions.value = ["eager"]
    assert len(finished(shown).rows) == 1


def test_rows_show_times_rates_the_share_of_the_bound_and_the_books_value(fake, monkeypatch):
    # 4.8e9 byte at the H200's 4.8 TB/s are 1 ms on paper.
    case = {"dtype": "bf16", "n": 2**26, "k": 4}
    beyond_l2 = {"cases": lambda gpu, quick: [case], "prepare": lambda case, names: fake.prepare({"n": 1}, names)}
    demand = Demand("<chain>", {"vector": 4.8e9}, {"hbm": 4.8e9})
    times = timing.Timing(2e-3, 1.9e-3, 2.1e-3, 4e-3, 11, "cold")
    monkeypatch.setattr(timing, "measure", lambda rivals, **_: (dict.fromkeys(rivals, times), {}))
    book = records.Record(
        "h200-sxm", "chain", rows=[{"case": case, "version": "fused", "time_s": 3e-3, "kernel": None}]
    )
    monkeypatch.setattr(records, "find", lambda *where: book if len(where) == 2 else None)
    shown = finished(panel(fake.experiment(demand=lambda case, version: demand, **beyond_l2)))
    eager, fused = cells(shown)
    assert eager == ["", "eager", "2 ms", "4 ms", "2.4 Top/s", "2.4 TB/s", "50.0%", "–"]
    assert fused[-1] == "3 ms"


def test_no_share_is_shown_where_bytes_may_come_from_l2(fake):
    assert [line[-2] for line in cells(finished(panel(fake.experiment())))] == ["–", "–"]


def test_progress_and_dots_follow_each_case(fake, explorer):
    shown = panel(fake.experiment(), explorer)
    choose(shown, ("n",), 1, 2, 3)
    book, seen = len(explorer.points), []
    explorer.observe(lambda _: seen.append((shown.progress.value, shown.status.value, len(yours(explorer)))), "points")
    finished(shown)
    assert [(value, dots) for value, _, dots in seen] == [(1, 2), (2, 4), (3, 6)]
    assert re.fullmatch(r"2 of 3 cases, about \d+ s left", seen[1][1])
    assert shown.progress.max == 3 and "6 rows kept in" in shown.status.value
    assert "their dots belong to the device h200-sxm" in shown.status.value
    assert len(explorer.points) == book + 6, "the book's points stay"
    point = yours(explorer)[0]
    # The scenario has a slider `n`, and so has the case.
    assert point["label"] == "yours: chain eager n = 1" and point["when"] == {"n": 1}
    assert point["flop_per_s"] == 1 / 2e-6 and point["intensity"] == 1
    assert (point["device"], point["dtype"]) == ("h200-sxm", "bf16") and "measured here, 2026-11-29" in point["source"]


def test_running_twice_measures_twice_and_moves_the_dots(fake, own, explorer):
    shown = finished(panel(fake.experiment(), explorer))
    fake.time_s = 4e-6
    # As when the cell runs again: another panel, the same explorer.
    for each in (shown, panel(fake.experiment(), explorer)):
        finished(each)
        assert [row["time_s"] for row in each.rows] == [4e-6] * 2
        assert [point["flop_per_s"] for point in yours(explorer)] == [1 / 4e-6] * 2
    assert len(fake.prepared) == 3 and len(records.load("h200-sxm", "chain", own).rows) == 2


def test_what_computes_nothing_gives_no_dot(fake, explorer):
    copy = Demand("copy", {"vector": 0}, {"hbm": 8})
    shown = finished(panel(fake.experiment(demand=lambda case, version: copy), explorer))
    assert len(shown.rows) == 2 and not yours(explorer)


def test_cancel_stops_and_finished_rows_stay(fake, own):
    shown = panel(fake.experiment())
    choose(shown, ("n",), 1, 2, 3)
    fake.measuring = lambda: shown.cancel_button.click() if len(fake.prepared) == 2 else None
    finished(shown)
    assert shown.status.value == "cancelled; finished cases are kept"
    assert {row["case"]["n"] for row in shown.rows} == {1} and len(cells(shown)) == 2
    assert {row["case"]["n"] for row in records.load("h200-sxm", "chain", own).rows} == {1}
    assert not shown.run_button.disabled and shown.cancel_button.disabled
    fake.measuring = lambda: None
    assert len(finished(shown).rows) == 6


def test_an_error_is_one_escaped_line_and_run_works_again(fake, monkeypatch):
    shown = panel(fake.experiment())
    with monkeypatch.context() as patch:
        # Not in a call that is measured, which the campaign survives, but in the campaign itself.
        patch.setattr(Campaign, "_open", lambda *_: (_ for _ in ()).throw(OSError("<b>lost</b>\nat 0x1")))
        finished(shown)
    assert shown.status.value == "stopped: OSError: &lt;b&gt;lost&lt;/b&gt;"
    assert not shown.run_button.disabled and shown.cancel_button.disabled
    assert len(finished(shown).rows) == 2


def test_a_case_that_fails_is_named_and_the_rest_goes_on(fake):
    fake.fail[2] = RuntimeError("<no> such instruction")
    shown = panel(fake.experiment())
    choose(shown, ("n",), 1, 2)
    finished(shown)
    assert len(shown.rows) == 2 and "failed: RuntimeError: &lt;no&gt; such instruction" in shown.output.value


def test_one_panel_measures_at_a_time(fake):
    first, second, go = panel(fake.experiment()), panel(fake.experiment()), threading.Event()
    fake.measuring = lambda: go.wait(30)
    first.run_button.click()
    assert first.run_button.disabled and not first.cancel_button.disabled and not first.join(0)
    second.run()
    first.run()
    go.set()
    assert first.join(30) and second.join(30)
    assert "another panel is measuring" in second.status.value and len(fake.prepared) == 1
    assert len(finished(second).rows) == 2


def test_without_a_gpu_it_is_disabled_and_names_the_record_instead(monkeypatch):
    monkeypatch.setattr(timing, "has_gpu", lambda: False)
    shown = panel("launch")
    said = shown.status.value
    assert said.startswith("No GPU here: nothing can be measured. launch: replayed from a record. NVIDIA H200")
    shown.run_button.click()
    assert shown.run_button.disabled and shown.join() and not shown.rows
    # What a page without a kernel shows, and what a stored output says at each run.
    assert shown._repr_mimebundle_()["text/html"] == f'<p class="rooflab-banner">{said}</p>'
    assert repr(shown) == "panel('launch')"


def test_unknown_names_raise_with_the_choices():
    with pytest.raises(RecordError, match="unknown experiment 'speed'; choose from bandwidth"):
        panel("speed")


def test_its_thread_has_what_torch_compile_keeps_for_graphs(fake, monkeypatch):
    # As in PyTorch before 2.13, where only the thread that imports the module has it.
    trees = types.SimpleNamespace(local=threading.local())
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    seen = []
    fake.measuring = lambda: seen.append(trees.local.tree_manager_containers)
    finished(panel(fake.experiment()))
    assert seen == [{}] and not hasattr(trees.local, "tree_manager_containers")
