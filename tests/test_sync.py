"""Notebooks are what their sources give, byte for byte, and the check notices when they are not."""

import json
import shutil
from pathlib import Path

import nbformat
import plain_markdown
import pytest
import sync

ROOT = Path(__file__).resolve().parents[1]

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""
PAGE = (
    HEADER
    + """
(top)=
# One page

Some text.

```{code-cell} ipython3
:tags: [hide-input]
x = 1
```

Between.

```{code-cell} ipython3
x = 1
```
"""
)
SOLUTION = (
    HEADER
    + """
# Exercise

Asked.

```{code-cell} ipython3
def f():
    ### BEGIN SOLUTION
    return 6 * 7
    ### END SOLUTION
```

```{code-cell} ipython3
:tags: [nbval-check-output]

f()
```

+++

<!-- BEGIN SOLUTION -->
Forty-two.
<!-- END SOLUTION -->

```{code-cell} ipython3
### BEGIN SOLUTION
assert f() == 42
### END SOLUTION
```
"""
)
REFERENCES = """@article{w09, author={Williams, S. and Waterman, A. and Patterson, D.}, year={2009}, doi={10.1/2}}
@misc{fp8, author={{NVIDIA}}, year={2022}, note={arXiv:2209.05433}}
@book{two, author={Hennessy, J. and Patterson, D.}, year={2017}, url={https://example.org/b}}
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A small book of one page with code, one without, and one exercise, written once; tests do not change it."""
    root = tmp_path_factory.mktemp("book")
    for folder in ("book/assets", "solutions", "notebooks", "exercises"):
        (root / folder).mkdir(parents=True)
    (root / "book/01-one.md").write_text(PAGE)
    (root / "book/plain.md").write_text("# No code\n\n```{tableofcontents}\n```\n")
    (root / "book/references.bib").write_text(REFERENCES)
    (root / "book/assets/roof.svg").write_text("<svg/>")
    (root / "solutions/07-seven.md").write_text(SOLUTION)
    assert sync.main(["--root", str(root)]) == 0
    return root


@pytest.fixture
def root(written, tmp_path):
    """A copy of the small book that a test may change."""
    return shutil.copytree(written, tmp_path / "root")


def notebooks(root) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.glob("*/*.ipynb"))}


def check(root, capsys) -> str:
    """Return what --check prints, which must be a failure."""
    capsys.readouterr()
    before = notebooks(root)
    assert sync.main(["--check", "--root", str(root)]) == 1
    assert notebooks(root) == before, "--check wrote"
    return capsys.readouterr().err


def test_the_repository_is_in_sync():
    assert sync.problems(ROOT) == []


def test_regeneration_is_byte_equal(root):
    first = notebooks(root)
    assert list(first) == ["exercises/07-seven.ipynb", "notebooks/01-one.ipynb", "solutions/07-seven.ipynb"]
    for path in root.glob("*/*.ipynb"):
        path.unlink()
    assert sync.main(["--root", str(root)]) == 0
    assert notebooks(root) == first
    assert sync.main(["--check", "--root", str(root)]) == 0


def test_ids_come_from_content_and_survive_an_edit_elsewhere(root):
    def ids():
        cells = nbformat.read(root / "notebooks/01-one.ipynb", as_version=4).cells
        return [cell.id for cell in cells]

    before = ids()
    # The two code cells are equal, so a suffix tells them apart.
    assert len(set(before)) == 5 and before[4] == before[2] + "-2"
    page = root / "book/01-one.md"
    page.write_text(page.read_text().replace("Some text.", "Other text."))
    sync.main(["--root", str(root)])
    assert ids()[0] != before[0] and ids()[1:] == before[1:]


def test_notebook_keeps_no_time_path_or_machine(root):
    for text in notebooks(root).values():
        assert str(root).encode() not in text and b"iopub" not in text and b'"version"' not in text
    metadata = json.loads((root / "solutions/07-seven.ipynb").read_text())["metadata"]
    assert metadata == {
        "jupytext": {
            "default_lexer": "ipython3",
            "text_representation": {"extension": ".md", "format_name": "myst"},
        },
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def test_solution_is_executed_and_exercise_is_a_stub(root):
    solution, exercise = (nbformat.read(root / folder / "07-seven.ipynb", 4) for folder in ("solutions", "exercises"))
    assert [cell.execution_count for cell in solution.cells if cell.cell_type == "code"] == [1, 2, 3, 4]
    assert solution.cells[3].outputs[0]["data"]["text/plain"] == "42"
    assert [cell.source for cell in exercise.cells] == [
        "# Exercise\n\nAsked.",
        sync.SETUP.format(repository=""),
        'def f():\n    raise NotImplementedError("write your answer here")',
        "f()",
    ]
    assert exercise.cells[3].metadata.tags == ["nbval-check-output"]


def test_hidden_input_is_folded_in_jupyterlab(root):
    cell = nbformat.read(root / "notebooks/01-one.ipynb", 4).cells[2]
    assert cell.source == "x = 1" and cell.metadata == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}


@pytest.mark.parametrize("name", ["notebooks/01-one.ipynb", "exercises/07-seven.ipynb", "solutions/07-seven.ipynb"])
@pytest.mark.parametrize("change", ["source of a cell", "one byte", "missing"])
def test_drift_is_found_and_named_with_its_remedy(root, capsys, name, change):
    path = root / name
    if change == "missing":
        path.unlink()
    elif change == "one byte":
        path.write_text(path.read_text() + "\n")
    else:
        notebook = nbformat.read(path, 4)
        notebook.cells[-1].source += " "
        nbformat.write(notebook, path)
    assert f"{name} " in (found := check(root, capsys)) and "run: make sync" in found


def test_edit_of_a_source_is_drift(root, capsys):
    (root / "solutions/07-seven.md").write_text(SOLUTION.replace("Asked.", "Asked again."))
    found = check(root, capsys)
    assert "solutions/07-seven.ipynb differs" in found and "exercises/07-seven.ipynb differs" in found


@pytest.mark.parametrize("change", ["cleared", "failed"])
def test_solution_that_did_not_run_to_the_end_is_found(root, capsys, change):
    path = root / "solutions/07-seven.ipynb"
    notebook = nbformat.read(path, 4)
    if change == "cleared":
        notebook.cells[2].update(outputs=[], execution_count=None)
    else:
        notebook.cells[2].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    nbformat.write(notebook, path)
    assert "solutions/07-seven.ipynb was not executed to the end" in check(root, capsys)


@pytest.mark.parametrize("folder", ["notebooks", "solutions", "exercises"])
def test_orphan_is_found(root, capsys, folder):
    shutil.copy(root / "notebooks/01-one.ipynb", root / folder / "99-gone.ipynb")
    assert f"{folder}/99-gone.ipynb has no source" in check(root, capsys)


def test_own_copy_of_an_exercise_is_left_alone(root):
    own = root / "exercises/my-07-seven.ipynb"
    own.write_text("{}")
    assert sync.main(["--root", str(root)]) == 0 and own.read_text() == "{}"


@pytest.mark.parametrize("folder", ["book", "solutions"])
def test_nothing_to_do_is_no_success(root, capsys, folder):
    for path in (root / folder).glob("0*.md"):
        path.unlink()
    assert f"{folder}/ holds no page with code cells" in check(root, capsys)


def test_failing_solution_is_not_written(root, capsys):
    before = notebooks(root)
    (root / "solutions/07-seven.md").write_text(SOLUTION.replace("6 * 7", "6 / 0"))
    assert sync.main(["--root", str(root)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert notebooks(root)["solutions/07-seven.ipynb"] == before["solutions/07-seven.ipynb"]


def test_page_without_jupytext_header_is_an_error(root, capsys):
    (root / "book/01-one.md").write_text(PAGE.replace(HEADER, ""))
    assert "book/01-one.md: no jupytext header" in check(root, capsys)


@pytest.mark.parametrize("text", ["```{grid} 2\nx\n```", ":::{raw} html\nx\n:::"])
def test_unknown_directive_names_page_directive_and_subset(root, capsys, text):
    (root / "book/01-one.md").write_text(PAGE.replace("Some text.", text))
    found = check(root, capsys)
    assert "book/01-one.md: directive {" in found and "the allowed subset is note, tip" in found
    assert ("{grid}" in found) == ("grid" in text) and ("{raw}" in found) == ("raw" in text)


# MyST in, Jupyter's Markdown out --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("myst", "expected"),
    [
        ("(here)=\n## Title", "## Title"),
        ("% a comment\ntext", "text"),
        ("$a$ and\n\n$$b$$ (eq-b)", "$a$ and\n\n$$b$$"),
        ("{math}`a < b`", "$a < b$"),
        ("```{math}\n:label: e\na + b\n```", "$$\na + b\n$$"),
        ("see {cite}`w09`", "see ([Williams et al., 2009](https://doi.org/10.1/2))"),
        ("{cite:t}`two`", "[Hennessy and Patterson, 2017](https://example.org/b)"),
        (
            "{cite}`w09, fp8`",
            "([Williams et al., 2009](https://doi.org/10.1/2); [NVIDIA, 2022](https://arxiv.org/abs/2209.05433))",
        ),
        ("{ref}`top`", "[One page](../notebooks/01-one.ipynb)"),
        ("{ref}`the start <top>`", "[the start](../notebooks/01-one.ipynb)"),
        ("{doc}`plain`", "[No code](../book/plain.md)"),
        ("[one](01-one.md)", "[one](../notebooks/01-one.ipynb)"),
        ("[](01-one.md)", "[One page](../notebooks/01-one.ipynb)"),
        ("[up](#top)", "[up](../notebooks/01-one.ipynb)"),
        ("[up](#one-page)", "[up](#One-page)"),
        ("[w](https://example.org/a.md)", "[w](https://example.org/a.md)"),
        ("![roof](assets/roof.svg)", "![roof](../book/assets/roof.svg)"),
        ("{term}`ridge`", "ridge"),
        ("`{cite}` and ``{grid}`x` ``", "`{cite}` and ``{grid}`x` ``"),
        ("```{note}\nBody.\n```", "> **Note**\n>\n> Body."),
        ("```{note}\nBody.\n```\nAfter.", "> **Note**\n>\n> Body.\n\nAfter."),
        ("```{note} First\nsecond.\n```", "> **Note**\n>\n> First\n> second."),
        (":::{admonition} My `title`\n:class: tip\nBody {math}`a`.\n:::", "> **My `title`**\n>\n> Body $a$."),
        (
            "```{dropdown} Answer\nIt is 3.\n```",
            "<details>\n<summary>Answer</summary>\n\nIt is 3.\n\n</details>",
        ),
        (
            "````{note}\n```{tip}\ninner\n```\n```python\n{grid}`x`\n```\n````",
            "> **Note**\n>\n> > **Tip**\n> >\n> > inner\n>\n> ```python\n> {grid}`x`\n> ```",
        ),
        (
            "```{figure} assets/roof.svg\n:alt: A roof\n:name: f\nThe {math}`P` roof.\n```",
            "![A roof](../book/assets/roof.svg)\n\nThe $P$ roof.",
        ),
        ("a\n\n```{figure} assets/roof.svg\n:class: only-dark\n```\n\nb", "a\n\n\nb"),
        ("```{bibliography}\n:filter: docname in docnames\n```", ""),
        ("```{code-block} bash\nmake book\n```", "```bash\nmake book\n```"),
        ("```\n{grid}`x` [a](b.md)\n```", "```\n{grid}`x` [a](b.md)\n```"),
    ],
)
def test_markdown(written, myst, expected):
    assert plain_markdown.plain(myst, written / "book/01-one.md", plain_markdown.Book(written)) == expected


@pytest.mark.parametrize(
    ("myst", "message"),
    [
        ("{eq}`e`", "role {eq} does not show in a notebook; the allowed subset is cite"),
        ("{cite}`gone`", "citation 'gone' is not in book/references.bib"),
        ("{ref}`gone`", "label 'gone' is not defined"),
        ("{doc}`gone`", "link to page 'gone'"),
        ("[x](gone.md)", "link to page 'gone'"),
        ("[x](#gone)", "link to '#gone'"),
        ("![x](assets/gone.svg)", "'assets/gone.svg' does not exist"),
        ("```{note}\nopen", "is not closed"),
    ],
)
def test_markdown_error_names_page_and_cause(written, myst, message):
    with pytest.raises(plain_markdown.MarkdownError, match="^book/01-one.md: ") as raised:
        plain_markdown.plain(myst, written / "book/01-one.md", plain_markdown.Book(written))
    assert message in str(raised.value)
