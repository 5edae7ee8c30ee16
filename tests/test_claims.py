"""Every number with a unit in a page's prose is claimed by an executed cell of the same page."""

import ast
import re
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[1] / "book"
PAGES = sorted(page for page in BOOK.glob("*.md") if "```{code-cell}" in page.read_text(encoding="utf-8"))
UNIT = r"(?:[GM]?Hz|W|[kMGTP]?FLOP(?:/s|/byte)?|[kMGTP]i?B(?:/s)?|bytes?|[mµun]?s|%)"
NUMBER = re.compile(rf"(?<![\w.^])(\d[\d,]*(?:\.\d+)?) ?({UNIT})(?![\w/])")
# Definitions and conditions of a statement, not statements: a format's width, a copy's size, the sizes in a question.
GIVEN = {
    "01-roofline": {
        "2 bytes",
        "1 MiB",
        "20 byte",
        "4 GiB",
        "40 GB",
        "80 GB",
        "100 %",
        "30 %",
        "3 %",
        "0.3 %",
        "0.7 s",
        "1 GiB",
    },
    # Where a slider is to be set.
    "06-cuda-graph-triton-compile": {"7 µs"},
    # What cited papers state, and an answer that is wrong.
    "07-flashattention-curve": {"40.3 GB", "4.4 GB", "95 %"},
    # What cited papers state.
    "errata": {"230 TFLOP/s", "335 TFLOP/s", "740 TFLOP/s", "840 TFLOP/s", "1.2 PFLOP/s", "1.3 PFLOP/s"},
    "04-tensor-cores-fp8": {"740 TFLOP/s", "840 TFLOP/s", "1.2 PFLOP/s", "1.3 PFLOP/s", "1.83 GHz", "4096 FLOP"},
}


def split(text):
    """Return (prose, code) of a MyST page without its front matter."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    cell = re.compile(r"```\{code-cell\}[^\n]*\n(.*?)```", re.DOTALL)
    code = "\n".join(re.sub(r"^:tags:.*\n", "", body, flags=re.MULTILINE) for body in cell.findall(text))
    return cell.sub("", text), code


def expected_values(code):
    """Return the numbers with a unit that strings are, or bound, in statements that claim something."""

    def claims(statement):
        calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
        return any(isinstance(name, ast.Name) and name.id == "claim" for name in calls)

    claiming = [statement for statement in ast.parse(code).body if claims(statement)]
    strings = [node.value for each in claiming for node in ast.walk(each) if isinstance(node, ast.Constant)]
    plain = {text.removeprefix("below ").removeprefix("above ") for text in strings if isinstance(text, str)}
    return {text for text in plain if NUMBER.fullmatch(text)}


def numbers(prose):
    return [f"{number} {unit}" for number, unit in NUMBER.findall(prose)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_number_in_prose_has_its_claim(page):
    prose, code = split(page.read_text(encoding="utf-8"))
    allowed = expected_values(code) | GIVEN.get(page.stem, set())
    missing = [number for number in numbers(prose) if number not in allowed]
    todo = "put claim(...) into a cell near each, or into GIVEN if it is a condition"
    assert not missing, f"{page.name}: {todo}: {missing}"


def test_the_lint_finds_an_unclaimed_number():
    prose, code = split('---\na: b\n---\nIt runs at 123 TFLOP/s.\n```{code-cell}\nclaim("x", 1, "12 FLOP")\n```\n')
    assert numbers(prose) == ["123 TFLOP/s"]
    assert "123 TFLOP/s" not in expected_values(code) and "12 FLOP" in expected_values(code)
    assert expected_values('title = "9 GB"') == set(), "a label is no claim"


def test_there_are_pages_and_numbers():
    assert PAGES
    assert all(numbers(split(page.read_text(encoding="utf-8"))[0]) for page in PAGES if page.stem[0].isdigit())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_are_short(page):
    cells = re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [[line for line in cell.strip().splitlines() if not line.startswith(":tags:")] for cell in cells]
    assert cells and [cell for cell in lines if len(cell) > 15] == []
    assert [line for cell in lines for line in cell if len(line) > 78] == []
