"""Make an nbgrader course of the exercises, and hold what nbgrader has to know of them.

    python tools/course.py FOLDER [--seed N]

writes FOLDER/nbgrader_config.py and FOLDER/source/NN-slug/NN-slug.ipynb. After that, nbgrader's own commands do the
rest, run inside FOLDER. `tools/sync.py` uses `mark` and `points_table` for the notebooks in the repository.

A source gives points by a tag: `points-3` on a check cell, or on a Markdown cell whose answer a person grades.
The check of a formula runs with other inputs, too, when answers are graded: `seed` draws them, hidden from students.
"""

from __future__ import annotations

import argparse
import importlib
import re
import secrets
import shlex
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
STUB = 'raise NotImplementedError("write your answer here")'
TEXT_STUB = "*Write your answer here.*"
CHECK = re.compile(r"ex\.(\w+)\.check\((\w+)\)")
POINTS = re.compile(r"points-(\d+)")
# What an exercise says of its name: in the repository, and in a course, where nbgrader knows it by its name.
OWN_COPY = "This notebook is generated, so work in a copy whose name begins with `my-`."
GRADED_COPY = "Keep the name of this file: it is graded by its name."
CONFIG = f'''"""nbgrader's settings of a course on Across the Ridge."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "across-the-ridge"
# The stubs are those of the book.
c.ClearSolutions.code_stub = {{"python": {STUB!r}}}
c.ClearSolutions.text_stub = {TEXT_STUB!r}
# Seconds per cell. No cell of a right answer takes more than a few.
c.ExecutePreprocessor.timeout = 120
'''


class CourseError(ValueError):
    """Raised when an exercise cannot be graded as it is written, or a course cannot be made where it should go."""


def only_solution(cell: NotebookNode) -> bool:
    """Return whether a cell holds nothing outside its solution marks: an explanation, which students do not get."""
    lines = cell.source.strip().split("\n")
    marks = [number for number, line in enumerate(lines) if "BEGIN SOLUTION" in line or "END SOLUTION" in line]
    return marks == [0, len(lines) - 1]


def mark(notebook: NotebookNode) -> NotebookNode:
    """Return a solution's notebook with nbgrader's metadata in place of the points tags.

    An answer is a solution cell, a check a locked cell with points, a text to write both at once; other code is locked.
    """
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        points = [int(found[1]) for tag in tags if (found := POINTS.fullmatch(tag))]
        cell.metadata["tags"] = [tag for tag in tags if not POINTS.fullmatch(tag)]
        if not cell.metadata["tags"]:
            del cell.metadata["tags"]
        roles = _roles(cell)
        if len(points) != roles.get("grade", False):
            raise CourseError(f"points are for checks and texts, one tag each; not so in: {cell.source[:60]!r}")
        if roles:
            roles = {"grade": False, "solution": False, "locked": False, "task": False, "schema_version": 3} | roles
            cell.metadata["nbgrader"] = roles | ({"points": points[0]} if points else {})
    ids = [cell.metadata.nbgrader.grade_id for cell in notebook.cells if "nbgrader" in cell.metadata]
    if twice := {each for each in ids if ids.count(each) > 1}:
        raise CourseError(f"two cells for one answer or check: {', '.join(sorted(twice))}")
    return notebook


def _roles(cell: NotebookNode) -> dict:
    """Return what nbgrader has to know of a cell, its points left out; an empty dict for a cell that is only read."""
    if only_solution(cell):
        return {}
    if cell.cell_type == "markdown":
        return {"grade": True, "solution": True, "grade_id": "own_words"} if "BEGIN SOLUTION" in cell.source else {}
    if check := CHECK.fullmatch(cell.source):
        return {"grade": True, "locked": True, "grade_id": f"check_{check[2]}"}
    if "BEGIN SOLUTION" in cell.source:
        answer = re.search(r"^def (\w+)", cell.source, re.MULTILINE)
        return {"solution": True, "grade_id": answer[1] if answer else f"answer_{cell.id}"}
    return {"locked": True, "grade_id": f"given_{cell.id}"}


def graded(notebook: NotebookNode) -> list[tuple[str, int]]:
    """Return (what is graded, its points) of a marked notebook, in order."""
    marks = [cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata]
    return [(each.grade_id.removeprefix("check_"), each.points) for each in marks if each.grade]


def points_table(notebook: NotebookNode) -> str:
    """Return the Markdown table of a marked notebook's points, or an empty string where nothing is graded."""
    parts = graded(notebook)
    if not parts:
        return ""
    lines = ["## Points", "", "| answer | points | graded by |", "|---|---|---|"]
    for name, points in parts:
        by_hand = name == "own_words"
        lines.append(
            f"| {'your own words' if by_hand else f'`{name}`'} | {points} | {'a person' if by_hand else 'its check'} |"
        )
    return "\n".join([*lines, f"| **all** | **{sum(points for _, points in parts)}** | |"])


def source_of(solution: NotebookNode, seed: int) -> NotebookNode:
    """Return the notebook for a course's source folder: a solution without its explanations, with hidden tests."""
    notebook = nbformat.from_dict(solution)
    notebook.cells = [cell for cell in notebook.cells if not only_solution(cell)]
    for cell in notebook.cells:
        cell.source = cell.source.replace(OWN_COPY, GRADED_COPY)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (module,) = {
        found for cell in code for found in re.findall(r"from rooflab\.exercises import (\w+) as ex", cell.source)
    }
    questions = importlib.import_module(f"rooflab.exercises.{module}")
    for cell in code:
        cell.outputs, cell.execution_count = [], None
        check = CHECK.fullmatch(cell.source)
        if not check:
            continue
        again = cell.source
        if hasattr(getattr(questions, check[1]), "draw"):
            again = again.removesuffix(")") + f", seed={seed})"
        # Not the check itself: nbgrader would take what the last line shows for a number of points.
        cell.source = f"{cell.source}\n### BEGIN HIDDEN TESTS\nassert {again}\n### END HIDDEN TESTS"
    return notebook


def make_course(folder: Path, seed: int, root: Path = ROOT) -> list[str]:
    """Write an nbgrader course of all exercises into `folder`; return their names."""
    if (folder / "nbgrader_config.py").exists() or (folder / "source").exists():
        raise CourseError(f"{folder} holds a course already; a second one would change what is graded in it")
    solutions = sorted((root / "solutions").glob("*.ipynb"))
    for path in solutions:
        target = folder / "source" / path.stem / path.name
        target.parent.mkdir(parents=True)
        nbformat.write(source_of(nbformat.read(path, as_version=4), seed), target)
    (folder / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    return [path.stem for path in solutions]


def next_step(folder: Path, name: str) -> str:
    """Return the command that makes the first release, from anywhere; nbgrader needs its environment to be active."""
    script = Path(sys.prefix) / "bin" / "activate"
    enter = f". {shlex.quote(str(script))}" if script.is_file() else f"conda activate {shlex.quote(sys.prefix)}"
    return f"{enter} && cd {shlex.quote(str(folder.resolve()))} && nbgrader generate_assignment {name}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 when no course was made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the course goes; it must not hold one")
    parser.add_argument("--seed", type=int, help="draws the inputs of the hidden tests; left out, it is random")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else secrets.randbelow(10**9) + 1
    try:
        names = make_course(options.folder, seed)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.folder} holds {len(names)} assignments. Next: {next_step(options.folder, names[0])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
