"""The questions that pages ask first: their source, their notebook, their page, and the goals that they meet."""

import re
import subprocess
import sys
from pathlib import Path

import plain_markdown
import pytest
import questions
import yaml

ROOT = Path(__file__).resolve().parents[1]
TOC = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
PAGES = {each["file"] for each in TOC["chapters"]}
SECTIONS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "book").glob("0[1-9]-*.md"))
    if path.stem in PAGES
}
EXERCISES = {path.stem for path in (ROOT / "solutions").glob("*.md")}
GOALS = (ROOT / "book" / "goals.md").read_text(encoding="utf-8")
LEAST = 2
UNIT_NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]* (?:%|FLOP/byte|TFLOP/s|[mµun]?s|[kMGT]B)(?![\w/])")

GOOD = """Why?

- ( ) Because
  That is no reason.
- (x) Of the bytes
  They are *few*,
  and so on."""


# Source ---------------------------------------------------------------------------------------------------------------


def test_a_question_is_read():
    asked = questions.parse("a-1", GOOD)
    assert asked.question == "Why?"
    assert [(each.label, each.right) for each in asked.choices] == [("Because", False), ("Of the bytes", True)]
    assert asked.choices[0].response == "**Not so.** That is no reason."
    assert asked.choices[1].response == "**Right.** They are *few*,\nand so on."


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("A b", "", "", "small letters"),
        ("a", "Why?", "", "asks nothing"),
        ("a", "(x)", "( )", "exactly one"),
        ("a", "( )", "(x)", "exactly one"),
        ("a", "- ( ) Because\n  That is no reason.\n", "", "two choices or more"),
        ("a", "Of the bytes", "Because", "twice"),
        ("a", "Because", "$P$", "plain text"),
        ("a", "Because", "`x`", "plain text"),
        ("a", "Because", "a < b", "plain text"),
        ("a", "  That is no reason.\n", "", "say why 'Because'"),
        ("a", "  and so on", "and so on", "indent 'and so on.'"),
    ],
)
def test_a_question_that_cannot_be_asked_says_why(name, old, new, message):
    with pytest.raises(questions.QuestionError, match=re.escape(message)):
        questions.parse(name, GOOD.replace(old, new, 1))


def test_questions_are_found_on_a_page():
    page = f"# T\n\n```{{predict}} one\n{GOOD}\n```\n\ntext\n\n:::{{predict}} two\n{GOOD}\n:::\n"
    assert [each.name for each in questions.predictions(page)] == ["one", "two"]


# Notebook -------------------------------------------------------------------------------------------------------------


def test_a_notebook_folds_each_choice():
    book = plain_markdown.Book(ROOT)
    page = ROOT / "book" / "index.md"
    assert plain_markdown.plain(f"```{{predict}} a\n{GOOD}\n```\nAfter.", page, book) == (
        "**Predict.** Why?\n\nDecide first, then open the answer that you chose.\n\n"
        "<details>\n<summary>Because</summary>\n\n**Not so.** That is no reason.\n\n</details>\n\n"
        "<details>\n<summary>Of the bytes</summary>\n\n**Right.** They are *few*,\nand so on.\n\n</details>\n\nAfter."
    )
    with pytest.raises(plain_markdown.MarkdownError, match="book/index.md: predict 'a' asks nothing"):
        plain_markdown.plain("```{predict} a\n```", page, book)


# Page -----------------------------------------------------------------------------------------------------------------


def build(folder, pages):
    """Build pages with Sphinx and the extension; return (exit status, warnings and errors)."""
    (folder / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'book' / '_ext')!r})\n"
        "extensions = ['myst_parser', 'predict']\nroot_doc = 'one'\n"
    )
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(folder),
        str(folder / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_a_page_folds_each_choice_and_can_be_linked_to(tmp_path):
    page = f"# One\n\n[there](#predict-a)\n\n```{{predict}} a\n{GOOD}\n```\n"
    assert build(tmp_path, {"one": page}) == (0, "")
    html = (tmp_path / "out" / "one.html").read_text(encoding="utf-8")
    assert '<details class="predict-choice predict-wrong"><summary>Because</summary>' in html
    assert re.search(r"<p><strong>Right.</strong> They are <em>few</em>,\s+and so on.</p>\s*</details>", html)
    assert html.count('id="predict-a"') == 1 and 'href="#predict-a"' in html


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ({"one": "# One\n\n```{predict} a\nWhy?\n```\n"}, "needs two choices"),
        (
            {
                "one": f"# One\n\n```{{toctree}}\ntwo\n```\n\n```{{predict}} a\n{GOOD}\n```\n",
                "two": f"# Two\n\n```{{predict}} a\n{GOOD}\n```\n",
            },
            "asked on page one already",
        ),
    ],
)
def test_a_build_refuses_a_question_that_cannot_be_asked(tmp_path, pages, message):
    status, said = build(tmp_path, pages)
    assert status != 0 and message in said


# The book -------------------------------------------------------------------------------------------------------------


def goals_of(page):
    """Return the goals that a section names at its start, without the marks of links to the glossary."""
    found = re.search(r"^After it you can\n\n((?:- .*\n)+)", page, re.MULTILINE)
    lines = found[1].splitlines() if found else []
    return [plain_goal(line.removeprefix("- ")) for line in lines]


def plain_goal(text):
    return re.sub(r"\{term\}`([^`<]+?)(?: <[^>]*>)?`", r"\1", text).strip().rstrip(".;")


def tables(text):
    """Return {page, or "" for the whole book: {goal: links of its second column}} of the tables in goals.md."""
    found = {}
    for head, rows in re.findall(r"^\|(.*goal.*)\n\|[-|]+\n((?:\|.*\n)*)", text, re.MULTILINE):
        slug = re.search(r"\[goal\]\((.+?)\.md\)", head)
        cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()]
        links = {goal.strip("| "): re.findall(r"\[([^\]]+)\]\(([^)]+)\)", where) for goal, where in cells}
        found[slug[1] if slug else ""] = links
    return found


def problems(sections, goals, exercises):
    """Return what is missing between the sections, the table of goals, the questions and the exercises."""
    listed, found = tables(goals), []
    names = [asked.name for page in sections.values() for asked in questions.predictions(page)]
    places = {f"#predict-{name}" for name in names} | {f"../exercises/{slug}.ipynb" for slug in exercises}
    found += [f"two questions are named {name}" for name in sorted(set(names)) if names.count(name) > 1]
    for slug, page in sections.items():
        wanted, table = goals_of(page), listed.get(slug, {})
        if not wanted:
            found.append(f"{slug} names no goals")
        if len(questions.predictions(page)) < LEAST:
            found.append(f"{slug} asks fewer than {LEAST} questions")
        found += [f"{slug}: goals.md lacks {goal!r}" for goal in wanted if goal not in table]
        found += [f"goals.md: {slug} has no goal {goal!r}" for goal in table if goal not in wanted]
    found += [f"goals.md: there is no section {slug}" for slug in listed if slug and slug not in sections]
    if len(listed.get("", {})) != 7:
        found.append("goals.md: the book has seven goals")
    for goal, links in ((goal, links) for table in listed.values() for goal, links in table.items()):
        if not links:
            found.append(f"goals.md: nothing meets {goal!r}")
        found += [f"goals.md: {target} is no exercise and no question" for _, target in links if target not in places]
        for text, target in links:
            number = re.match(r"exercise (\d)", text)
            if number and not target.startswith(f"../exercises/0{number[1]}-"):
                found.append(f"goals.md: {text!r} leads to {target}")
    return found


def test_every_goal_is_met_by_an_exercise_or_a_question():
    assert len(SECTIONS) >= 6 and EXERCISES
    assert problems(SECTIONS, GOALS, EXERCISES) == []


SMALL = f"# 1\n\nAfter it you can\n\n- count {{term}}`FLOPs <FLOP>`;\n- see.\n\n```{{predict}} a\n{GOOD}\n```\n"
SMALL += f"```{{predict}} b\n{GOOD}\n```\n"
ROW = "| goal | where |\n|---|---|\n"
BOOK_ROWS = "".join(f"| goal {n} | [q](#predict-a) |\n" for n in range(7))
TABLE = ROW.replace("goal", "[goal](01-x.md)") + "| count FLOPs | [exercise 7](../exercises/07-y.ipynb) |\n"
TABLE += "| see | [q](#predict-b), [p](#predict-a) |\n"
LISTED = f"{ROW}{BOOK_ROWS}\n{TABLE}"


def test_a_complete_table_has_no_problems():
    assert problems({"01-x": SMALL}, LISTED, {"07-y"}) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("- see.\n", "- see.\n- sing.\n", "01-x: goals.md lacks 'sing'"),
        ("- see.\n", "", "goals.md: 01-x has no goal 'see'"),
        ("After it you can", "Then", "01-x names no goals"),
        ("```{predict} b", "```{dropdown} b", "01-x asks fewer than 2 questions"),
        ("```{predict} b", "```{predict} a", "two questions are named a"),
        ("| see | [q](#predict-b), [p](#predict-a) |", "| see |  |", "goals.md: nothing meets 'see'"),
        ("[q](#predict-b)", "[q](#predict-c)", "goals.md: #predict-c is no exercise and no question"),
        ("exercises/07-y", "exercises/07-z", "goals.md: ../exercises/07-z.ipynb is no exercise and no question"),
        ("exercise 7", "exercise 6", "goals.md: 'exercise 6' leads to ../exercises/07-y.ipynb"),
        ("| goal 3 | [q](#predict-a) |\n", "", "goals.md: the book has seven goals"),
        ("(01-x.md)", "(02-x.md)", "goals.md: there is no section 02-x"),
    ],
)
def test_an_incomplete_table_is_found(old, new, message):
    assert (old in SMALL) != (old in LISTED), "the change changes one of the two"
    section, listed = SMALL.replace(old, new), LISTED.replace(old, new)
    assert message in problems({"01-x": section}, listed, {"07-y"})


@pytest.mark.parametrize("slug", SECTIONS)
def test_a_question_stands_before_its_answer(slug):
    page = SECTIONS[slug]
    for asked in questions.predictions(page):
        begin = page.index(f"{{predict}} {asked.name}\n")
        before, after = page[:begin], page[begin:]
        (right,) = (choice.label for choice in asked.choices if choice.right)
        numbers = UNIT_NUMBER.findall(right)
        # One of two may stand there by chance, of something else.
        told = numbers and all(number in before for number in numbers)
        assert not told, f"{asked.name}: the page says {numbers} before it asks"
        assert re.search(r"```\{code-cell\} ipython3\n(?!:tags: \[hide-input\])", after), (
            f"{asked.name}: nothing follows that shows the answer"
        )


@pytest.mark.parametrize("slug", SECTIONS)
def test_the_place_of_the_right_choice_gives_nothing_away(slug):
    places = [[choice.right for choice in asked.choices].index(True) for asked in questions.predictions(SECTIONS[slug])]
    assert len(set(places)) > 1, f"all answers of {slug} stand at place {places[0] + 1}"
