"""What a teacher relies on: nbgrader grades, the student's site has no solutions, notebooks start on a bare machine."""

import ast
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import course
import nbformat
import pytest
import student_site
import sync
from nbgrader.api import Gradebook
from nbgrader.nbgraderformat import MetadataValidator

from rooflab.exercises import fp8_ops_per_byte

ROOT = Path(__file__).resolve().parents[1]
SLUGS = sorted(path.stem for path in (ROOT / "solutions").glob("*.md"))
GRADED = "07-fp8-ops-per-byte"
# One answer with a known misconception, and one that knows only the inputs of the check that a student sees.
WRONG = (ROOT / f"tests/wrong/{GRADED}/speedup_sum.py").read_text(encoding="utf-8")
MEMORISED = """from rooflab.exercises import fp8_ops_per_byte as known
SEEN = {tuple(one.values()): known.ridge.right(**one) for one in known.ridge.inputs()}
def ridge_flop_per_byte(peak_flop_per_s, bytes_per_s):
    return SEEN.get((peak_flop_per_s, bytes_per_s), 1.0)
"""


def read(folder, slug):
    return nbformat.read(ROOT / folder / f"{slug}.ipynb", as_version=4)


def marks(notebook):
    return [cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata]


def given_out(source):
    """The source of an exercise's cell as students of a course get it: nbgrader knows a notebook by its name."""
    return source.replace(
        "This notebook is generated, so work in a copy whose name begins with `my-`.",
        "Keep the name of this file: it is graded by its name.",
    )


def points(notebook):
    return {each.grade_id: each.points for each in marks(notebook) if each.grade}


def nbgrader(folder, *words):
    """Return (exit status, output) of an nbgrader command run in `folder`."""
    # nbgrader looks for alembic and jupyter on the path, as they are in an activated environment.
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    command = [programs / "nbgrader", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


# The marks in the notebooks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["solutions", "exercises"])
@pytest.mark.parametrize("slug", SLUGS)
def test_nbgrader_accepts_the_marks(slug, folder):
    notebook = read(folder, slug)
    MetadataValidator().validate_nb(notebook)
    ids = [each.grade_id for each in marks(notebook)]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and not course.only_solution(cell):
            assert (mark["grade"], mark["solution"], mark["locked"]) in {
                (True, False, True),  # a check
                (False, True, False),  # an answer
                (False, False, True),  # given
            }
            assert mark["grade"] == bool(re.match(r"ex\.\w+\.check\(", cell.source))
            assert mark["solution"] == ("BEGIN SOLUTION" in cell.source or "NotImplementedError(" in cell.source)


@pytest.mark.parametrize("slug", SLUGS)
def test_every_answer_has_points_and_the_table_says_so(slug):
    notebook = read("exercises", slug)
    given = points(notebook)
    answers = {each.grade_id for each in marks(notebook) if each.solution}
    assert {f"check_{name}" for name in answers - {"own_words"}} | {"own_words"} == set(given)
    assert min(given.values()) >= 1 and sum(given.values()) == 30 and given["own_words"] == 5
    table = dict(re.findall(r"^\| (.+?) \| \**(\d+)\** \|", notebook.cells[-1].source, re.MULTILINE))
    expected = {f"`{name.removeprefix('check_')}`": str(worth) for name, worth in given.items() if name != "own_words"}
    assert table == expected | {"your own words": "5", "**all**": "30"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", points-3]", "]", "points are for checks"),
        (", points-3]", ", points-3, points-4]", "points are for checks"),
        ("ex.f.check(f)\n", "ex.f.check(f, 1)\n", "points are for checks"),
        (
            "```{code-cell} ipython3\nx = 1",
            "```{code-cell} ipython3\n:tags: [points-1]\nx = 1",
            "points are for checks",
        ),
        ("x = 1", "def f():\n    ### BEGIN SOLUTION\n    return 2\n    ### END SOLUTION", "two cells for one answer"),
    ],
)
def test_a_source_that_cannot_be_graded_is_refused(old, new, message):
    import jupytext

    text = """```{code-cell} ipython3
x = 1
```

```{code-cell} ipython3
def f():
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION
```

```{code-cell} ipython3
:tags: [nbval-check-output, points-3]

ex.f.check(f)
```
"""
    assert [each.grade for each in marks(course.mark(jupytext.reads(text, fmt="md:myst")))] == [False, False, True]
    assert text.count(old) == 1
    with pytest.raises(course.CourseError, match=message):
        course.mark(jupytext.reads(text.replace(old, new), fmt="md:myst"))


def rows(heading):
    """The rows of the first table below a heading of the page, each a list of cells."""
    page = (ROOT / "book/teaching.md").read_text(encoding="utf-8")
    lines = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].split("\n")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_the_page_has_the_points_of_every_exercise():
    found = {}
    for cells in rows("Points"):
        if link := re.search(r"\(\.\./exercises/(.+)\.ipynb\)", cells[0]):
            found[link[1]] = [int(cells[2]), int(cells[3]), int(cells[4]), cells[5]]
    for slug in SLUGS:
        given = points(read("exercises", slug))
        by_hand = given.pop("own_words")
        minutes = re.search(r"It takes (\d+ to \d+) minutes", (ROOT / f"solutions/{slug}.md").read_text("utf-8"))[1]
        assert found.pop(slug) == [len(given), sum(given.values()), by_hand, minutes]
    assert found == {}


def test_the_plan_fills_its_hours_and_uses_every_exercise():
    times = [
        tuple(map(int, re.fullmatch(r"(\d+) to (\d+)", cells[0]).groups())) for cells in rows("Seven sessions")[2:8]
    ]
    assert times[0][0] == 0 and times[-1][1] == 120
    assert all(before[1] == after[0] for before, after in zip(times, times[1:], strict=False))
    sessions = [cells for cells in rows("Seven sessions")[8:] if cells[0].isdigit()]
    assert [int(cells[0]) for cells in sessions] == list(range(1, 8))
    text = " ".join(" ".join(cells) for cells in sessions)
    assert {int(number) for number in re.findall(r"exercise (\d)", text)} == {int(slug[:2]) for slug in SLUGS}
    for number, name in re.findall(r"exercise (\d) up to `(\w+)`", text):
        (slug,) = [slug for slug in SLUGS if slug.startswith(f"0{number}")]
        assert f"check_{name}" in points(read("exercises", slug))


# A course, for real --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """A course with one assignment given out, three submissions of it, all graded."""
    folder = tmp_path_factory.mktemp("course")
    assert course.main([str(folder), "--seed", "20261129"]) == 0
    status, output = nbgrader(folder, "generate_assignment", GRADED)
    assert status == 0, output
    released = nbformat.read(folder / f"release/{GRADED}/{GRADED}.ipynb", as_version=4)
    solved = {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in read("solutions", GRADED).cells
        if "nbgrader" in cell.metadata
    }
    answers = {
        "right": solved,
        "wrong": solved
        | {"speedup_of_bound": WRONG, "ridge_flop_per_byte": MEMORISED}
        # A check made harmless by the student: nbgrader puts the teacher's back.
        | {"check_speedup_of_bound": "pass", "own_words": "FP8 helps."},
        "empty": {},
    }
    for student, given in answers.items():
        submission = nbformat.from_dict(released)
        for cell in submission.cells:
            mark = cell.metadata.get("nbgrader", {"grade": False, "solution": False})
            if mark["solution"] or mark["grade"]:
                cell.source = given.get(mark["grade_id"], cell.source)
        path = folder / f"submitted/{student}/{GRADED}/{GRADED}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(submission, path)
    status, output = nbgrader(folder, "autograde", GRADED)
    assert status == 0, output
    return folder


def test_what_is_given_out_is_the_exercise(classroom):
    released = nbformat.read(classroom / f"release/{GRADED}/{GRADED}.ipynb", as_version=4)
    stub = read("exercises", GRADED)
    assert [(cell.cell_type, cell.source) for cell in released.cells] == [
        (cell.cell_type, given_out(cell.source)) for cell in stub.cells
    ]
    assert [
        {key: each[key] for key in stub_mark} for each, stub_mark in zip(marks(released), marks(stub), strict=True)
    ] == marks(stub)
    locked = [cell for cell in released.cells if cell.metadata.get("nbgrader", {}).get("locked")]
    assert locked and all(cell.metadata.editable is False for cell in locked)
    assert not any(cell.outputs for cell in released.cells if cell.cell_type == "code")


def test_every_assignment_becomes_its_exercise(classroom):
    """As `generate_assignment` does, without its database: six more runs of the command would take long."""
    for slug in SLUGS:
        source = nbformat.read(classroom / f"source/{slug}/{slug}.ipynb", as_version=4)
        text = [cell.source for cell in source.cells]
        checks = [cell for cell in source.cells if course.CHECK.match(cell.source)]
        assert sum("seed=20261129" in each for each in text) >= len(checks) / 3
        assert all("BEGIN HIDDEN TESTS" in cell.source for cell in checks)
        assert [cell.source for cell in sync.exercise_of(source).cells] == [
            given_out(cell.source) for cell in read("exercises", slug).cells
        ]


def test_no_assignment_asks_for_another_name_of_its_file(classroom):
    for slug in SLUGS:
        whole = (classroom / f"source/{slug}/{slug}.ipynb").read_text(encoding="utf-8")
        assert "my-" not in whole and whole.count("Keep the name of this file") == 1


def test_a_right_submission_gets_all_points_that_a_check_gives(classroom):
    with Gradebook(f"sqlite:///{classroom}/gradebook.db") as gradebook:
        found = gradebook.find_submission(GRADED, "right")
        assert (found.score, found.max_score) == (25, 30)
        assert found.needs_manual_grade and not found.notebooks[0].failed_tests


def test_a_wrong_submission_loses_the_points_of_what_is_wrong(classroom):
    assert fp8_ops_per_byte.ridge.check(namespace_of(MEMORISED)["ridge_flop_per_byte"]), "the visible check accepts it"
    worth = points(read("exercises", GRADED))
    lost = {"check_speedup_of_bound", "check_ridge_flop_per_byte"}
    with Gradebook(f"sqlite:///{classroom}/gradebook.db") as gradebook:
        found = gradebook.find_submission(GRADED, "wrong")
        grades = {grade.name: grade.auto_score for grade in found.notebooks[0].grades}
        assert {name for name, score in grades.items() if score == 0} == lost
        assert found.score == 25 - sum(worth[name] for name in lost)


def test_an_empty_submission_gets_nothing(classroom):
    with Gradebook(f"sqlite:///{classroom}/gradebook.db") as gradebook:
        found = gradebook.find_submission(GRADED, "empty")
        assert found.score == 0 and not found.needs_manual_grade


def test_a_person_grades_the_text(classroom):
    with Gradebook(f"sqlite:///{classroom}/gradebook.db") as gradebook:
        grade = gradebook.find_grade("own_words", GRADED, GRADED, "wrong")
        assert grade.needs_manual_grade and grade.max_score == 5
        before = gradebook.find_submission(GRADED, "wrong").score
        grade.manual_score = 4
        gradebook.db.commit()
        assert gradebook.find_submission(GRADED, "wrong").score == before + 4


def test_validate_accepts_a_solution_and_rejects_a_stub():
    status, output = nbgrader(ROOT, "validate", f"solutions/{GRADED}.ipynb", f"exercises/{GRADED}.ipynb")
    solved, stub = output.split("Success! Your notebook passes all the tests.\n")
    assert status == 0 and "VALIDATION FAILED" not in solved
    assert f"VALIDATION FAILED ON {len(points(read('exercises', GRADED))) - 1} CELL(S)" in stub


def test_a_course_is_not_overwritten(classroom, capsys):
    before = sorted(path.read_bytes() for path in (classroom / "source").glob("*/*.ipynb"))
    assert course.main([str(classroom)]) == 1
    assert "holds a course already" in capsys.readouterr().err
    assert before == sorted(path.read_bytes() for path in (classroom / "source").glob("*/*.ipynb"))


@pytest.mark.parametrize("has", ["bin/activate", "conda-meta"])
def test_a_new_course_says_how_to_go_on_from_a_plain_shell(tmp_path, capsys, monkeypatch, has):
    """The command enters the environment and the folder, with paths that have a blank."""
    prefix, folder = tmp_path / "my env", tmp_path / "my course"
    (prefix / "bin").mkdir(parents=True)
    (prefix / has).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert course.main([str(folder)]) == 0
    enter = f". '{prefix}/bin/activate'" if has == "bin/activate" else f"conda activate '{prefix}'"
    said = capsys.readouterr().out
    assert said.endswith(f"Next: {enter} && cd '{folder}' && nbgrader generate_assignment 01-decode-intensity\n")


@pytest.mark.parametrize(("user", "told"), [("0", True), ("1000", False)])
def test_make_lab_starts_for_root_too(tmp_path, user, told):
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["make", "-n", "lab"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ("--allow-root" in done.stdout) == told


def test_make_lab_shows_the_exercises():
    """JupyterLab shows nothing above the folder that it is given; the pages send students to `exercises/` in it."""
    done = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    (command,) = [line for line in done.stdout.splitlines() if "/jupyter lab " in line]
    assert [word for word in command.partition("/jupyter lab ")[2].split() if not word.startswith("--")] == []
    for path in sorted((ROOT / "book").glob("0*.md")):
        part = path.read_text(encoding="utf-8").partition("\n## Exercises\n")[2].partition("\n## ")[0]
        assert "run `make lab` in a copy of the repository, open the notebook in `exercises/`" in part, path.name


# The site for students -----------------------------------------------------------------------------------------------


def hidden_lines():
    """The lines of all solutions that say something: longer than 25 characters, and in no exercise or page."""
    public = "".join(
        path.read_text(encoding="utf-8") for folder in ("book", "exercises") for path in (ROOT / folder).glob("*.*")
    )
    found = set()
    for path in (ROOT / "solutions").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"BEGIN SOLUTION(?: -->)?\n(.*?)^[^\n]*END SOLUTION", text, re.DOTALL | re.MULTILINE):
            found |= {line.strip() for line in block.splitlines() if len(line.strip()) > 25}
    return {line for line in found if line not in public and json.dumps(line)[1:-1] not in public}


def text_of(site):
    """All text of a site's pages, sources, notebooks and search index, tags and backslashes left out."""
    parts = []
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".md", ".txt", ".ipynb", ".json") or path.name == "searchindex.js":
            text = path.read_text(encoding="utf-8")
            parts.append(html.unescape(re.sub(r"<[^<>]*>", "", text)) if path.suffix == ".html" else text)
    return "\n".join(parts).replace("\\", "")


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "student"
    student_site.make(student_site.BUILT / "html", folder)
    return folder


def test_the_students_site_has_no_solution(student):
    lines = [(line, re.sub(r"<[^<>]*>", "", line).replace("\\", "")) for line in sorted(hidden_lines())]
    assert len(lines) > 500
    whole, shown = text_of(student_site.BUILT / "html"), text_of(student)
    assert sum(plain in whole for _, plain in lines) > 0.95 * len(lines), "the site for all has them"
    assert [line for line, plain in lines if plain in shown] == []
    assert not (student / "solutions").exists() and "solutions/0" not in shown


def test_the_students_site_is_whole_otherwise(student):
    import check_site

    assert [problem for check in check_site.CHECKS for problem in check(student)] == []
    built = student_site.BUILT / "html"
    kept = {path.relative_to(student) for path in student.rglob("*") if path.is_file()}
    assert {path.relative_to(built) for path in built.rglob("*") if path.is_file()} - kept == {
        path.relative_to(built) for path in (built / "solutions").iterdir()
    }


@pytest.mark.parametrize(
    ("pattern", "before", "after"),
    [
        (
            "HTML",
            '<p><a href="e.ipynb">e</a>, <a href="solutions/s.ipynb"><b>s</b></a>.</p>',
            '<p><a href="e.ipynb">e</a>.</p>',
        ),
        ("HTML", '<ul><li><p><a href="solutions/s.ipynb">s</a></p></li>\n</ul>', "<ul></ul>"),
        ("MARKDOWN", "a\n- [s](../solutions/s.ipynb)\n- b", "a\n- b"),
    ],
)
def test_links_to_solutions_go(pattern, before, after):
    assert student_site.without_links(before, getattr(student_site, pattern), "page") == after


@pytest.mark.parametrize("text", ['See <a href="solutions/s.ipynb">it</a>.', "See [it](../solutions/s.ipynb)."])
def test_a_link_in_a_sentence_stops_the_tool(text):
    with pytest.raises(student_site.LinkLeft, match="page links to a solution"):
        student_site.without_links(text, student_site.HTML if "<a" in text else student_site.MARKDOWN, "page")


@pytest.fixture
def small_site(tmp_path):
    """Return a site of two pages, one of them a solution, in a folder with another file."""
    site = tmp_path / "built" / "html"
    (site / "solutions").mkdir(parents=True)
    (site / "solutions" / "s.html").write_text("s")
    (site / "index.html").write_text("<p>a</p>")
    (tmp_path / "built" / "notes.txt").write_text("mine")
    return site


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("built/html", "is, contains or lies in the site"),
        ("built", "is, contains or lies in the site"),
        ("built/html/student", "is, contains or lies in the site"),
        ("built/html/../../built/html", "is, contains or lies in the site"),
        ("built/other", "is no copy made by this tool; choose another folder, or delete it yourself"),
        ("built/notes.txt", "is no copy made by this tool"),
    ],
)
def test_the_students_site_takes_the_place_of_nothing_else(small_site, target, reason, monkeypatch, capsys):
    root = small_site.parents[1]
    (root / "built" / "other").mkdir()
    (root / "built" / "other" / "thesis.txt").write_text("mine")
    before = {path: path.is_file() and path.read_text() for path in root.rglob("*")}
    monkeypatch.setattr(sys, "argv", ["student_site.py", str(small_site), str(root / target)])
    assert student_site.main() == 1
    assert f"{(root / target).resolve()} {reason}" in capsys.readouterr().err
    assert {path: path.is_file() and path.read_text() for path in root.rglob("*")} == before


def test_a_copy_takes_an_empty_folder_and_the_place_of_an_earlier_copy(small_site, tmp_path):
    copy = tmp_path / "new" / "student"
    copy.mkdir(parents=True)
    student_site.make(small_site, copy)
    (small_site / "index.html").rename(small_site / "home.html")
    student_site.make(small_site, copy)
    assert sorted(path.name for path in copy.iterdir()) == [student_site.MARK, "home.html"]


def test_a_copy_that_was_cut_short_may_be_replaced(small_site, tmp_path, monkeypatch):
    def cut_short(site, target, **_):
        (target / "index.html").write_text("<p>")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(student_site.shutil, "copytree", cut_short)
        student_site.make(small_site, tmp_path / "student")
    assert student_site.make(small_site, tmp_path / "student") == 0


# The first cell of a notebook ----------------------------------------------------------------------------------------

NOTEBOOKS = sorted(
    path for folder in ("notebooks", "exercises", "solutions") for path in (ROOT / folder).glob("*.ipynb")
)
# A machine without rooflab: an import of it fails until pip, of which only the command is seen, has "installed" it.
BARE = """
import sys
kept, asked = sys.path[:], []
class Missing:
    def find_spec(self, name, path=None, target=None):
        return None
class Ipython:
    def run_line_magic(self, magic, line):
        asked.append(f"%{{magic}} {{line}}")
        sys.path[:], sys.meta_path[:] = kept, finders
finders = sys.meta_path[:]
sys.path[:] = [each for each in sys.path if not each.startswith({root!r}) or "site-packages" in each]
sys.meta_path[:] = [each for each in finders if "ditable" not in repr(each)]
get_ipython = Ipython
import importlib.util
assert importlib.util.find_spec("rooflab") is None, "this machine is not bare"
exec({cell!r})
print(asked)
"""


def first_cell(path):
    return next(cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")


def test_every_notebook_begins_with_the_same_cell_and_no_page_has_it():
    assert len(NOTEBOOKS) > 20
    cells = {first_cell(path).source for path in NOTEBOOKS if not path.match(sync.OWN_COPY)}
    assert cells == {sync.SETUP.format(repository=sync.repository(ROOT))}
    ast.parse(*cells)
    for page in (student_site.BUILT / "html").glob("*.html"):
        assert "REPOSITORY" not in page.read_text(encoding="utf-8").replace("ROOFLAB_REPOSITORY", ""), page.name


def test_the_repository_is_named_in_one_place(tmp_path):
    assert sync.repository(tmp_path) == ""
    (tmp_path / "_config.yml").write_text("repository: {url: https://example.org/book, branch: x}\n")
    assert sync.repository(tmp_path) == "git+https://example.org/book@x"
    assert "REPOSITORY = 'git+https://example.org/book@x'" in sync.SETUP.format(repository=sync.repository(tmp_path))


def run_bare(cell, folder):
    code = BARE.format(root=str(ROOT), cell=cell)
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_first_cell_installs_what_is_missing(tmp_path):
    (tmp_path / "content").mkdir()
    done = run_bare(sync.SETUP.format(repository="git+https://example.org/book@x"), tmp_path / "content")
    assert done.returncode == 0, done.stderr
    said, asked = done.stdout.splitlines()
    assert re.match(r"GPU here: \w|No GPU here: ", said)
    assert asked == "['%pip install --quiet git+https://example.org/book@x']"
    # In a copy of the repository, that copy.
    (tmp_path / "pyproject.toml").touch()
    assert "'%pip install --quiet ..'" in run_bare(sync.SETUP.format(repository=""), tmp_path / "content").stdout


def test_the_first_cell_says_what_it_lacks(tmp_path):
    done = run_bare(sync.SETUP.format(repository=""), tmp_path)
    assert done.returncode == 1 and "Put the address of the book's repository into REPOSITORY" in done.stderr


def test_links_to_colab_and_binder():
    sys.path.insert(0, str(ROOT / "book/_ext"))
    try:
        from pages import hosted
    finally:
        sys.path.pop(0)
    found = hosted("https://github.com/owner/a.book.git", "main", "notebooks/01-x.ipynb")
    assert found == {
        "Colab": "https://colab.research.google.com/github/owner/a.book/blob/main/notebooks/01-x.ipynb",
        "Binder": "https://mybinder.org/v2/gh/owner/a.book/main?urlpath=lab/tree/notebooks/01-x.ipynb",
    }
    assert hosted("", "main", "x") == hosted("https://example.org/owner/book", "main", "x") == {}


def namespace_of(source):
    namespace = {}
    exec(source, namespace)
    return namespace
