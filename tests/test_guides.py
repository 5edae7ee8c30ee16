"""The pages that lead through the book: the index, the summary with its rules, and the sources to read."""

import ast
import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from rooflab import records

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
PAGES = re.findall(r"file: (\S+)", (BOOK / "_toc.yml").read_text("utf-8"))
SECTIONS = [name for name in PAGES if name[0].isdigit()]
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::tags:[^\n]*\n)?(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(page):
    return (BOOK / f"{page}.md").read_text(encoding="utf-8")


# The index -------------------------------------------------------------------------------------------------------


def test_the_index_leads_to_every_page_and_every_exercise():
    links = set(re.findall(r"\]\(([^)#]+)", text_of("index")))
    assert {f"{page}.md" for page in PAGES} <= links
    exercises = {f"../exercises/{path.name}" for path in (ROOT / "exercises").glob("*.ipynb")}
    assert exercises and exercises <= links


def test_the_course_has_a_week_for_each_section_and_each_exercise_once():
    weeks = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \|$", text_of("index"), re.MULTILINE)
    read = [name for _, what, _ in weeks for name in re.findall(r"\((\d\d-[\w-]+)\.md\)", what)]
    work = [name for _, _, what in weeks for name in re.findall(r"exercises/(\S+?)\.ipynb", what)]
    assert [number for number, _, _ in weeks] == [str(number) for number in range(1, 8)]
    assert read == SECTIONS and sorted(work) == sorted(path.stem for path in (ROOT / "exercises").glob("*.ipynb"))


def test_the_index_has_three_ways_and_five_readers():
    text = text_of("index")
    assert all(f"**{way}.**" in text for way in ("Thirty minutes", "A day", "A course"))
    table = text.split("## What you get from it")[1].split("##")[0]
    assert len(re.findall(r"^\| [a-z].*\|$", table, re.MULTILINE)) == 5 + 1  # with its head


# Sources ---------------------------------------------------------------------------------------------------------


def cited(text):
    return {key for keys in re.findall(r"\{cite\}`([^`]+)`", text) for key in keys.split(",")}


@pytest.mark.parametrize("page", SECTIONS)
def test_what_a_section_recommends_stands_under_its_heading(page):
    own = cited(text_of(page).split("## Further reading")[1])
    (part,) = [each for each in text_of("further-reading").split("\n## ") if each.startswith(f"{int(page[:2])}. ")]
    # What an earlier section has said needs no second sentence.
    before = text_of("further-reading").split(part)[0]
    assert own and own <= cited(before + part)


def test_each_entry_says_what_to_read_it_for():
    entries = [line for line in text_of("further-reading").splitlines() if line.startswith("- ")]
    keys = set(re.findall(r"^@\w+\{(\S+),", (BOOK / "references.bib").read_text("utf-8"), re.MULTILINE))
    assert len(entries) > 20 and all(cited(line) and len(line.split()) > 10 for line in entries)
    assert cited(text_of("further-reading")) == keys, "every source of the book has its sentence"


# The summary -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def summary():
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for source in CELL.findall(text_of("summary")):
            exec(compile(ast.parse(source), "summary", "exec"), names)
    return names


@pytest.fixture
def copy_row():
    """Return a row of a copy whose 8 GiB need 1.88 ms at the best read, and what to change in it."""
    (row,) = records.load("h200-sxm", "chain").select("fused", n=2**28, k=1, dtype="bf16")

    def changed(**changes):
        row_of = {key: value for key, value in row.items() if key != "counted"}
        return row_of | {"wall_s": row_of["time_s"]} | changes

    return changed


def test_the_rules_turn_where_the_page_says(summary, copy_row):
    limit, read = summary["limit"], summary["rates"]["read"].rate
    bytes_s = 2 * 2 * 2**28 / read  # one operation: read n elements of two bytes, write n
    for share, said in ((0.81, "bandwidth"), (0.79, "none of these")):
        time_s = bytes_s / share
        assert limit("chain", copy_row(time_s=time_s, wall_s=time_s)) == said
    time_s = bytes_s / 0.9
    assert limit("chain", copy_row(time_s=time_s, wall_s=1.24 * time_s)) == "bandwidth"
    assert limit("chain", copy_row(time_s=time_s, wall_s=1.26 * time_s)) == "launch"
    slow = dict(time_s=2 * bytes_s, wall_s=2 * bytes_s)
    many = round(2 * bytes_s / summary["brief_s"])
    assert limit("chain", copy_row(**slow, launches=many + 1)) == "many short kernels"
    assert limit("chain", copy_row(**slow, launches=many - 1)) == "none of these"
    busy = {"time_s": slow["time_s"], "read_bytes": 1.0, "write_bytes": 0.0, "tensor_share": 0.0, "warp_share": 0.9}
    assert limit("chain", copy_row(**slow, counted=[busy | {"issue_share": 0.7}])) == "instruction issue"


def test_arithmetic_is_the_limit_of_a_product_at_four_fifths_of_the_fastest(summary):
    (row,) = records.load("h200-sxm", "gemm").select(dtype="bf16", M=8192)
    flop_s = 2 * 8192**3 / summary["rates"]["gemm bf16"].rate
    for share, said in ((0.81, "compute"), (0.79, "none of these")):
        time_s = flop_s / share
        assert summary["limit"]("gemm", row | {"time_s": time_s, "wall_s": time_s}) == said


@pytest.mark.parametrize("clock", ["time_s", "wall_s"])
def test_the_quotients_are_those_of_the_files(summary, clock):
    """Computed anew from the JSON text, without this package's records."""
    path = ROOT / "src/rooflab/data/measurements/h200-sxm/norm.json"
    rows = json.loads(path.read_text("utf-8"))["rows"]
    times = {(row["version"], json.dumps(row["case"])): row[clock] for row in rows}
    cases = {case for version, case in times if version == "compiled"}
    want = sorted(times["eager", case] / times["compiled", case] for case in cases)
    got = [gain for gain, _ in summary["quotients"]("norm", "eager", "compiled", clock)]
    assert len(got) > 3 and got == pytest.approx(want)


def test_ways_of_a_step_are_compared_within_one_run(summary):
    rows = records.load("h200-sxm", "decode_step").select(L=4096)
    found = {(row["version"], row["case"]["B"]): row for row in rows if "tuned" not in row["case"]}
    pairs = [(found["eager", B], found["graph", B]) for B in (1, 8, 64)]
    assert all(eager["run"] == graph["run"] for eager, graph in pairs)
    want = sorted(eager["wall_s"] / graph["wall_s"] for eager, graph in pairs)
    assert sorted(summary["gains"]["CUDA graph", "decode_step"]) == pytest.approx(want)


def test_every_technique_has_a_case_and_a_section(summary):
    sections = {int(name[:2]) for name in SECTIONS}
    listed = [each for ways in summary["ways"].values() for each in ways]
    assert {section for *_, section in listed} <= sections
    assert all(summary["gains"][title, name] for title, name, *_ in listed)
    lost = {title for (title, _), gains in summary["gains"].items() if min(gains) < 1}
    assert {"torch.compile", "reduce-overhead", "FP8 and quantising", "own product"} <= lost


def test_the_most_that_a_launch_can_leave_is_not_below_a_launch(summary):
    """A tiny kernel cannot reach zero: its bound is a launch in a graph."""
    (row,) = records.load("h200-sxm", "norm").select("eager", rows=1, dtype="bf16")
    assert max(summary["needed_s"]("norm", row)) == pytest.approx(3 * summary["rates"]["launch graph"].rate)
