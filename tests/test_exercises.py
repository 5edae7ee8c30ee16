"""Solutions run, stubs fail only where an answer is missing, known wrong answers are rejected with reasons."""

import ast
import dataclasses
import importlib
import json
import pkgutil
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from rooflab import exercises, timing

ROOT = Path(__file__).resolve().parents[1]
SLUGS = sorted(path.stem for path in (ROOT / "solutions").glob("*.md"))
WRONG = sorted((ROOT / "tests" / "wrong").glob("*/*.py"))
CHECK = re.compile(r"\w+\.\w+\.check\((\w+)\)")


def code_cells(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def run(folder: str, slug: str, **options) -> list:
    """Return the code cells of a notebook after a run in a fresh kernel."""
    notebook = nbformat.read(ROOT / folder / f"{slug}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(ROOT / folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources, **options).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def errors(cell) -> list[str]:
    return [output.ename for output in cell.outputs if output.output_type == "error"]


def defined(source: str) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def test_there_is_something_to_test():
    assert SLUGS, "solutions/ holds no source"
    for slug in SLUGS:
        assert len([path for path in WRONG if path.parent.name == slug]) >= 8, f"{slug} has too few wrong answers"
    assert {path.parent.name for path in WRONG} <= set(SLUGS), "wrong answers to an exercise that is not there"


@pytest.mark.parametrize("slug", SLUGS)
def test_solution_runs_and_passes_every_check(slug):
    cells = run("solutions", slug)
    checks = [cell for cell in cells if CHECK.fullmatch(cell.source)]
    assert len(checks) >= 3
    for cell in checks:
        assert "✓" in cell.outputs[0]["data"]["text/plain"], cell.source


@pytest.mark.parametrize("slug", SLUGS)
def test_stub_raises_only_not_implemented_and_only_in_its_checks(slug):
    cells = run("exercises", slug, allow_error_names=["NotImplementedError"])
    failing = [cell for cell in cells if errors(cell)]
    assert failing and all(errors(cell) == ["NotImplementedError"] for cell in failing)
    # Where there is a GPU, a cell that measures calls the reader's function, too.
    failing = [cell.source for cell in failing if not (timing.has_gpu() and re.search(r"ex\.\w+_here\(", cell.source))]
    assert failing == [cell.source for cell in cells if CHECK.fullmatch(cell.source)]


@pytest.mark.parametrize("slug", SLUGS)
def test_stub_asks_for_every_answer_that_the_solution_gives(slug):
    stub, solution = (code_cells(ROOT / folder / f"{slug}.ipynb") for folder in ("exercises", "solutions"))
    asked = set().union(*map(defined, stub))
    assert asked == set().union(*map(defined, solution))
    assert {CHECK.fullmatch(source)[1] for source in stub if CHECK.fullmatch(source)} == asked
    assert sum("raise NotImplementedError" in source for source in stub) == len(asked)


@pytest.mark.parametrize("slug", SLUGS)
def test_stub_keeps_no_trace_of_the_solution(slug):
    text = (ROOT / "exercises" / f"{slug}.ipynb").read_text(encoding="utf-8")
    assert "SOLUTION" not in text and "HIDDEN TESTS" not in text
    assert not any(cell.get("outputs") for cell in json.loads(text)["cells"])
    hidden = (ROOT / "solutions" / f"{slug}.md").read_text(encoding="utf-8")
    lines = [
        line.strip()
        for block in re.findall(r"BEGIN SOLUTION(?: -->)?\n(.*?)^[^\n]*END SOLUTION", hidden, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if len(line.strip()) > 20
    ]
    assert lines and not [line for line in lines if json.dumps(line)[1:-1] in text]


@pytest.mark.parametrize("path", WRONG, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_wrong_answer_is_rejected_with_its_reason(path):
    from rooflab.lesson import WrongAnswer

    source = path.read_text(encoding="utf-8")
    expects = re.search(r"^# misconception: .+\n# expects: (.+)$", source, re.MULTILINE)[1]
    (answer,) = defined(source)
    namespace = {"display": lambda *shown: None, "print": lambda *shown: None}
    for cell in code_cells(ROOT / "solutions" / f"{path.parent.name}.ipynb"):
        check = CHECK.fullmatch(cell)
        if check and check[1] == answer:
            with pytest.raises(WrongAnswer) as raised:
                exec(cell, namespace)
            break
        # The solution's cell gives way to the wrong one; everything before it is the notebook's own.
        exec(source if answer in defined(cell) else cell, namespace)
    else:
        pytest.fail(f"no check cell calls {answer}")
    assert expects in str(raised.value)
    assert len(str(raised.value)) < 400 and "\n" not in str(raised.value)


@pytest.mark.parametrize("module", [found.name for found in pkgutil.iter_modules(exercises.__path__)])
def test_every_known_wrong_formula_is_rejected_for_its_own_reason(module):
    from rooflab.lesson import Question, WrongAnswer

    module = importlib.import_module(f"rooflab.exercises.{module}")
    questions = [value for value in vars(module).values() if isinstance(value, Question)]
    assert questions
    for question in questions:
        # A right formula need not keep the rules, such as never to hold a large matrix: the solution does.
        dataclasses.replace(question, rules={}).check(question.right, seed=1)
        for reason, formula in question.wrong.items():
            with pytest.raises(WrongAnswer, match=re.escape(reason)):
                question.check(formula)
