"""The page on measuring one's own GPU: its commands exist, and a reader's record is drawn wherever it says so."""

import ast
import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rooflab import cli, records, timing
from rooflab.experiments import EXPERIMENTS, results, runs_on
from rooflab.figures import Picture, lines_figure, roofline_figure, svg
from rooflab.hardware import device
from rooflab.records import Record
from rooflab.roofline import Roofline
from rooflab.widgets import RooflineExplorer

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
PAGE = BOOK / "measure-your-gpu.md"
TEXT = PAGE.read_text(encoding="utf-8")
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::tags:[^\n]*\n)?(.*?)^```$", re.DOTALL | re.MULTILINE)
SECTIONS = [BOOK / f"{name}.md" for name in re.findall(r"file: (\d\d-\S+)", (BOOK / "_toc.yml").read_text("utf-8"))]
SHOWS = ("figures.show(", "RooflineExplorer(")


def drawn():
    """Return the page's list: {(section, kind, beginning of the alt text or id): experiments}."""
    (cell,) = [cell for cell in CELL.findall(TEXT) if cell.startswith("drawn = [")]
    listed = ast.literal_eval(ast.parse(cell).body[0].value)
    return {(section, kind, name): set(experiments.split()) for section, kind, name, experiments in listed}


@pytest.fixture
def own(monkeypatch, tmp_path):
    """Return a function that files copies of the book's records as those of another card, half as fast."""
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path))
    monkeypatch.delenv("ROOFLAB_REPLAY", raising=False)
    monkeypatch.setattr(timing, "has_gpu", lambda: False)

    def copy(*experiments):
        for name in experiments:
            book = records.load("h200-sxm", name)
            run = book.runs[-1] | {"gpu": "My GPU", "measured": "2027-01-02T03:04Z"}
            record = Record("my-gpu", name, [run])
            for row in book.rows:
                times = {key: 2 * row[key] for key in ("time_s", "p20_s", "p80_s", "wall_s")}
                record.append({key: value for key, value in row.items() if key != "digest"} | times | {"run": 0})
            record.save(tmp_path)

    return copy


def shown_by(page):
    """Return the figures and explorers that a page's cells end with; those after the last one are not run."""
    cells = CELL.findall(page.read_text(encoding="utf-8"))
    last = max((number for number, cell in enumerate(cells) if any(word in cell for word in SHOWS)), default=-1)
    shown, names = [], {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for source in cells[: last + 1]:
            *body, end = ast.parse(source).body
            value = isinstance(end, ast.Expr)
            exec(compile(ast.Module(body if value else [*body, end], []), page.name, "exec"), names)
            if value:
                shown.append(eval(compile(ast.Expression(end.value), page.name, "eval"), names))
    return [each for each in shown if isinstance(each, Picture | RooflineExplorer)]


def name_of(shown):
    return ("figure", shown.alt) if isinstance(shown, Picture) else ("explorer", shown.scenario["id"])


def draws_own(shown):
    if isinstance(shown, Picture):
        return "yours" in shown.svg
    return any(point["label"].startswith("yours") for point in shown.points)


def measured(shown):
    """Return whether a figure or explorer shows what the book measured."""
    return "H200" in shown.caption if isinstance(shown, Picture) else bool(shown.points)


@pytest.mark.parametrize("page", SECTIONS, ids=lambda page: page.stem)
def test_every_measured_figure_draws_the_readers_record(page, own):
    """With a copied record under another card's name, exactly the listed figures hold the word "yours"."""
    section = int(page.stem[:2])
    listed = {(kind, name): names for (number, kind, name), names in drawn().items() if number == section}
    own(*set().union(*listed.values()))
    shown = shown_by(page)
    seen = {key: False for key in listed}
    for each in shown:
        kind, name = name_of(each)
        match = [key for key in listed if key[0] == kind and name.startswith(key[1])]
        assert draws_own(each) == bool(match), f"{kind} {name}"
        assert measured(each) == bool(match), f"{kind} {name} shows measurements and is not on the page's list"
        seen |= dict.fromkeys(match, True)
    assert all(seen.values()), [key for key, found in seen.items() if not found]


@pytest.mark.parametrize("experiment", ["gemm", "chain", "decode_linear"])
def test_each_listed_experiment_is_what_draws(experiment, own):
    """Without its record there is no dot: the list names the right experiment for what the scenarios draw."""
    from rooflab.widgets import decode_scenario, fusion_scenario, roofline_scenario

    of = {"gemm": roofline_scenario, "chain": fusion_scenario, "decode_linear": decode_scenario}
    others = {"gemm", "chain", "decode_linear"} - {experiment}
    own(*others)
    assert not any(point.label.startswith("yours") for point in of[experiment]().points)
    own(experiment)
    assert any(point.label.startswith("yours") for point in of[experiment]().points)


def test_the_list_names_experiments_and_sections():
    listed = drawn()
    assert listed and set().union(*listed.values()) <= EXPERIMENTS.keys()
    assert {section for section, _, _ in listed} <= {int(page.stem[:2]) for page in SECTIONS}


def test_the_page_draws_through_the_functions_of_the_sections(own):
    own("chain")
    (figure,) = [each for each in shown_by(PAGE) if isinstance(each, Picture)]
    assert draws_own(figure)


def test_sides_are_the_book_and_then_the_reader(own):
    assert [whose for whose, _, _ in results("chain").sides()] == [""]
    own("chain")
    (_, book, root), (whose, record, folder) = results("chain").sides()
    assert (book.device, root, whose, record.device) == ("h200-sxm", records.BOOK, " (yours)", "my-gpu")
    assert records.find(record.device, "chain", folder).rows == record.rows


def test_own_points_are_squares_with_their_names():
    line = Roofline.of(device("h200-sxm"), "bf16")
    ranges = {"x_range": (10, 1e4), "y_range": (1e12, 3e15)}
    plain = roofline_figure(line, **ranges)
    marked = roofline_figure(line, own=[("n = 7", 100.0, 2e14)], **ranges)
    squares = [each for each in marked.axes[0].lines if each.get_marker() == "s"]
    assert [(each.get_xdata()[0], each.get_ydata()[0]) for each in squares] == [(100.0, 2e14)]
    assert "n = 7" in svg(marked, "a") and "yours" in svg(marked, "a") and "yours" not in svg(plain, "a")
    beside = roofline_figure(line, steps=[("a", 100.0, 3e14)], own=[("1 yours", 100.0, 2e14)], **ranges)
    assert "1 yours, 200 TFLOP/s" in svg(beside, "a")


def test_own_lines_have_hollow_marks():
    lines = lines_figure({"h200-sxm": ([1, 2], [1, 2]), "yours": ([1, 2], [2, 1])}, "x", "y").axes[0].lines
    assert [line.get_markerfacecolor() == "none" for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("experiment", "version", "lowest", "highest"),
    [
        ("bandwidth", "triton", 75, 120),
        ("decode_step", "triton", 90, 120),
        ("gemm_ladder", "autotuned", 75, 120),
        ("gemm_ladder", "tma", 90, 120),
        ("gemm_ladder", "warp_specialised", 90, 90),
    ],
)
def test_an_old_card_is_refused_what_it_has_no_unit_for(experiment, version, lowest, highest):
    """TMA and dependent launches came with sm_90, wgmma exists there only, and all else is tried everywhere."""
    runs = [number for number in (75, 80, 86, 89, 90, 100, 120) if runs_on(experiment, version, number)]
    assert (runs[0], runs[-1]) == (lowest, highest)


# Commands ----------------------------------------------------------------------------------------------------------


def commands():
    """Return the lines of the page's shell blocks, and the commands in its running text."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`((?:rooflab|make|ncu) [^`]+)`", CELL.sub("", TEXT))
    return [line for line in [*lines, *inline] if line]


def help_of(command):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        cli.main([command, "--help"])
    return said.getvalue()


def problem(line):
    """Return what is wrong with a command of the page, or None."""
    word, *rest = shlex.split(line)
    if word == "rooflab":
        command, *rest = rest
        if f"rooflab {command}" not in help_of(command):
            return f"no command {command}"
        options = [each for each in rest if each.startswith("--")]
        names = [each for each in rest if not each.startswith("--") and "/" not in each]
        if unknown := [each for each in options if each not in help_of(command)]:
            return f"no option {unknown}"
        if command in ("measure", "show") and (unknown := [each for each in names if each not in EXPERIMENTS]):
            return f"no experiment {unknown}"
    elif word == "make":
        if not re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE):
            return f"no target {rest[0]}"
    elif word == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        asked = [name for found in re.findall(r"\[([^\]]*)\]", line) for name in found.split(",")]
        if not asked or set(asked) - extras.keys():
            return f"no extra {asked}"
    elif word in ("python", "git"):
        paths = [each for each in rest if "/" in each]
        if not paths or not all((ROOT / each).exists() for each in paths):
            return f"no path {paths}"
    else:
        return "an unknown program"
    return None


def test_every_command_of_the_page_exists():
    found = commands()
    assert len(found) > 8
    assert {line: said for line in found if (said := problem(line))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "rooflab measure --fast",
        "rooflab measure speed",
        "make laboratory",
        "pip install '.[cuda]'",
        "python tests/no.py",
    ],
)
def test_a_command_that_does_not_exist_is_found(line):
    assert problem(line)


def test_the_page_lists_every_experiment_from_the_package():
    names, shown = {}, []
    for source in CELL.findall(TEXT):
        if "heads =" in source and "each.title" in source:
            *body, end = ast.parse(source).body
            exec(compile(ast.Module(body, []), PAGE.name, "exec"), names)
            shown = eval(compile(ast.Expression(end.value), PAGE.name, "eval"), names).rows
        elif "import" in source or source.startswith("book = {"):
            exec(compile(source, PAGE.name, "exec"), names)
    assert [row[0] for row in shown] == list(EXPERIMENTS)
    for row in shown:
        assert row[1] == EXPERIMENTS[row[0]].title and 0 <= int(row[2]) <= int(row[3]) > 0
