"""Write the notebooks from their Markdown sources, in one direction only.

    book/SLUG.md       ->  notebooks/SLUG.ipynb   without outputs; pages without code cells stay pages
    solutions/SLUG.md  ->  solutions/SLUG.ipynb   executed
                       ->  exercises/SLUG.ipynb   the solutions taken out, without outputs

`python tools/sync.py` writes; `python tools/sync.py --check` writes nothing and fails when a notebook differs from what
its source gives, or has no source.
The same source gives the same bytes: a cell's id is a hash of its content, and no time, path or machine is kept.
In an exercise, what stands between BEGIN SOLUTION and END SOLUTION becomes a stub, and a cell that holds nothing else
is left out. `tools/course.py` says what nbgrader reads in it.
Before the first code cell of a notebook comes one that installs the package where it is missing, as on Colab. It is no
part of the page.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
import yaml
from course import STUB, TEXT_STUB, CourseError, mark, only_solution, points_table
from nbformat import NotebookNode
from plain_markdown import Book, MarkdownError, has_code, plain

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "make sync"
# A reader's own copy of an exercise, which this tool neither writes nor complains about.
OWN_COPY = "my-*.ipynb"
SETUP = """\
# Installs rooflab where it is missing, as on Colab, and says which GPU is here.
import importlib.util
from pathlib import Path

REPOSITORY = {repository!r}
if importlib.util.find_spec("rooflab") is None:
    source = ".." if Path("../pyproject.toml").exists() else REPOSITORY
    if not source:
        raise ModuleNotFoundError(
            "rooflab is not installed. Put the address of the book's repository into REPOSITORY, "
            "as in git+https://host/name, and run this cell again."
        )
    get_ipython().run_line_magic("pip", f"install --quiet {{source}}")

from rooflab import provenance

print(provenance.gpu_here())"""


class SyncError(ValueError):
    """Raised when a source cannot become a notebook."""


def read_source(source: Path, book: Book) -> NotebookNode:
    """Return the notebook that a MyST source gives: no outputs, plain Markdown, ids made of content."""
    text = source.read_text(encoding="utf-8")
    parsed = jupytext.reads(text, fmt="md:myst")
    if not re.match(r"---\n(?:.*\n)*?jupytext:\n(?:.*\n)*?---\n", text):
        raise SyncError(f"{source.relative_to(book.root)}: no jupytext header, so Sphinx would not run its cells")
    cells = []
    for cell in parsed.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source, source, book)
        if cell.source.strip():
            cells.append(cell)
    first = next((place for place, cell in enumerate(cells) if cell.cell_type == "code"), 0)
    setup = SETUP.format(repository=repository(book.root))
    cells.insert(first, nbformat.v4.new_code_cell(setup, metadata={"tags": ["hide-input"]}))
    # The default lexer stays, so that a way back to MyST would not rewrite each `code-cell ipython3`.
    header = parsed.metadata.jupytext
    keep = {key: header[key] for key in ("default_lexer", "text_representation") if key in header}
    metadata = {
        "jupytext": keep,
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return _clean(nbformat.v4.new_notebook(cells=cells, metadata=metadata))


def repository(root: Path) -> str:
    """Return what pip installs the package from on a machine without a copy; empty where _config.yml names no place."""
    config = root / "_config.yml"
    named = yaml.safe_load(config.read_text(encoding="utf-8")).get("repository", {}) if config.exists() else {}
    return f"git+{named['url']}@{named.get('branch', 'main')}" if named.get("url") else ""


def solution_of(source: Path, book: Book) -> NotebookNode:
    """Return the notebook of a solution's source, with nbgrader's metadata and the table of its points."""
    try:
        notebook = mark(read_source(source, book))
    except CourseError as error:
        raise SyncError(f"{source.relative_to(book.root)}: {error}") from None
    if table := points_table(notebook):
        notebook.cells.append(nbformat.v4.new_markdown_cell(table))
    return _clean(notebook)


def exercise_of(solution: NotebookNode) -> NotebookNode:
    """Return a solution's notebook without its solutions and hidden tests."""
    from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions

    notebook = nbformat.from_dict(solution)
    notebook.cells = [cell for cell in notebook.cells if not only_solution(cell)]
    for step in (ClearSolutions(code_stub={"python": STUB}, text_stub=TEXT_STUB), ClearHiddenTests()):
        notebook, _ = step.preprocess(notebook, {})
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    return _clean(notebook)


def executed(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Return the notebook with the outputs of a fresh kernel started in `folder`; a failing cell raises."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.from_dict(notebook)
    # No timing and no widget state: both would differ at each run.
    options = {"record_timing": False, "store_widget_state": False, "coalesce_streams": True}
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}, **options
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise SyncError(f"{folder.name}: a cell fails\n{error}") from None
    notebook.metadata.language_info = {"name": "python"}
    for count, cell in enumerate(_code(notebook), start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    return notebook


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _clean(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook without outputs, each cell's id a hash of its content, and hidden inputs hidden."""
    seen: Counter = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if "hide-input" in cell.metadata.get("tags", []):
                cell.metadata["jupyter"] = {"source_hidden": True}
    return notebook


def _without_outputs(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook without outputs and execution counts."""
    notebook = nbformat.from_dict(notebook)
    for cell in _code(notebook):
        cell.outputs, cell.execution_count = [], None
    return notebook


def dumps(notebook: NotebookNode) -> str:
    """Return the notebook's text as it is written to disk."""
    return nbformat.writes(notebook, version=4, sort_keys=True) + "\n"


def sources(root: Path, folder: str) -> list[Path]:
    """Return the Markdown sources in `folder` that become notebooks."""
    return [path for path in sorted((root / folder).glob("*.md")) if has_code(path.read_text(encoding="utf-8"))]


def generated(root: Path) -> Iterator[tuple[Path, NotebookNode, bool]]:
    """Yield (notebook path, notebook, whether it is to be executed) for every source."""
    book = Book(root)
    found = {folder: sources(root, folder) for folder in ("book", "solutions")}
    for folder, paths in found.items():
        if not paths:
            raise SyncError(f"{folder}/ holds no page with code cells; a sync of nothing is no success")
    for path in found["book"]:
        yield root / "notebooks" / f"{path.stem}.ipynb", read_source(path, book), False
    for path in found["solutions"]:
        solution = solution_of(path, book)
        yield root / "solutions" / f"{path.stem}.ipynb", solution, True
        yield root / "exercises" / f"{path.stem}.ipynb", exercise_of(solution), False


def problems(root: Path) -> list[str]:
    """Return one line for each notebook that is missing, differs from its source, or has none."""
    found, wanted = [], set()
    for path, notebook, is_executed in generated(root):
        name = path.relative_to(root).as_posix()
        wanted.add(path)
        if not path.is_file():
            found.append(f"{name} is missing; run: {COMMAND}")
            continue
        text = path.read_text(encoding="utf-8")
        if is_executed:
            written = nbformat.reads(text, as_version=4)
            # Outputs are compared by nbval, which executes; here each cell must have run and none failed.
            ran = [cell.execution_count for cell in _code(written)] == list(range(1, len(_code(written)) + 1))
            failed = any(output.output_type == "error" for cell in _code(written) for output in cell.outputs)
            if failed or not ran:
                found.append(f"{name} was not executed to the end; run: {COMMAND}")
            if text == dumps(written):
                text = dumps(_without_outputs(written))
        if text != dumps(notebook):
            found.append(f"{name} differs from its source; run: {COMMAND}")
    for folder in ("notebooks", "solutions", "exercises"):
        for path in sorted(set((root / folder).glob("*.ipynb")) - wanted):
            if not path.match(OWN_COPY):
                found.append(f"{folder}/{path.name} has no source; delete it, or name your own copy {OWN_COPY}")
    return found


def write(root: Path) -> list[str]:
    """Write each notebook that changed; return their names."""
    changed = []
    for path, notebook, is_executed in generated(root):
        text = dumps(executed(notebook, path.parent) if is_executed else notebook)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path.relative_to(root).as_posix())
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 when a notebook and its source disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a notebook differs")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds book/ and solutions/")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        if not options.check:
            print("\n".join(f"wrote {name}" for name in write(root)) or "all notebooks were up to date")
        found = problems(root)
    except (SyncError, MarkdownError) as error:
        found = [str(error)]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
