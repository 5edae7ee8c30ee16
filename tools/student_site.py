"""Make a copy of the built site without the solutions: no solution notebooks, and no links to them.

    python tools/student_site.py [FROM, by default _build/html] [TO, by default _build/student]

A link in a list, or after a comma, goes with its text. A link of another form stops the tool, since what stands around
it would no longer be a sentence.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import nbformat

BUILT = Path(__file__).resolve().parents[1] / "_build"
_ANCHOR = r'<a [^>]*href="(?:\.\./)*solutions/[^"]*"[^>]*>.*?</a>'
_LINK = r"\[[^\]]*\]\((?:\.\./)*solutions/[^)]*\)"
HTML = re.compile(rf"<li>\s*<p>\s*{_ANCHOR}\s*</p>\s*</li>\n?|,\s*{_ANCHOR}", re.DOTALL)
MARKDOWN = re.compile(rf"^- {_LINK}\n|,\s*{_LINK}", re.MULTILINE)
LEFT = re.compile(rf"{_ANCHOR}|{_LINK}", re.DOTALL)
MARK = ".made-by-student-site"  # a file in each copy: what has it may be replaced


class LinkLeft(ValueError):
    """Raised when a page links to a solution in a form that cannot be taken out."""


class TargetRefused(ValueError):
    """Raised when a copy would take the place of something else than an earlier copy."""


def without_links(text: str, pattern: re.Pattern, where: str) -> str:
    """Return `text` without its links to solutions, or raise LinkLeft naming the file.

    >>> without_links("Try [it](../exercises/a.ipynb), [solution](../solutions/a.ipynb).", MARKDOWN, "a page")
    'Try [it](../exercises/a.ipynb).'
    """
    text = pattern.sub("", text)
    if left := LEFT.search(text):
        raise LinkLeft(f"{where} links to a solution in a sentence of its own: {left[0]}")
    return text


def refuse_to_replace(site: Path, target: Path) -> None:
    """Raise an error naming the folder unless `target` is new, empty or an earlier copy, and apart from the site.

    Both paths are resolved.
    """
    if target.is_relative_to(site) or site.is_relative_to(target):
        raise TargetRefused(f"{target} is, contains or lies in the site {site}; choose a folder outside it")
    if target.exists() and not (target / MARK).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise TargetRefused(f"{target} is no copy made by this tool; choose another folder, or delete it yourself")


def make(site: Path, target: Path) -> int:
    """Copy the site at `site` to `target` without solutions; return how many files held a link to one."""
    site, target = site.resolve(), target.resolve()
    if not (site / "solutions").is_dir():
        raise FileNotFoundError(f"no solutions in {site}; run: make book")
    refuse_to_replace(site, target)
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    (target / MARK).touch()  # first, so that a copy cut short may be replaced too
    shutil.copytree(
        site, target, ignore=lambda folder, names: ["solutions"] if Path(folder) == site else [], dirs_exist_ok=True
    )
    changed = 0
    for path in sorted(target.rglob("*")):
        if path.suffix == ".ipynb":
            notebook = nbformat.read(path, as_version=4)
            before = [cell.source for cell in notebook.cells]
            for cell in notebook.cells:
                if cell.cell_type == "markdown":
                    cell.source = without_links(cell.source, MARKDOWN, path.name)
            if edited := before != [cell.source for cell in notebook.cells]:
                nbformat.write(notebook, path)
        elif path.suffix in (".html", ".md", ".txt"):
            text = path.read_text(encoding="utf-8")
            shorter = without_links(text, HTML if path.suffix == ".html" else MARKDOWN, path.name)
            if edited := shorter != text:
                path.write_text(shorter, encoding="utf-8")
        else:
            edited = False
        changed += edited
    return changed


def main() -> int:
    """Run the command line; return 1 when a solution would stay in the copy, or something be lost."""
    site, target = (Path(word) for word in (*sys.argv[1:3], *(BUILT / "html", BUILT / "student")[len(sys.argv) - 1 :]))
    try:
        changed = make(site, target)
    except (FileNotFoundError, LinkLeft, TargetRefused) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{target}/index.html opens the book without solutions; {changed} files lost their links to them.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
