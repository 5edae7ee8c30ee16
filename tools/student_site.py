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


class LinkLeft(ValueError):
    """Raised when a page links to a solution in a form that cannot be taken out."""


def without_links(text: str, pattern: re.Pattern, where: str) -> str:
    """Return `text` without its links to solutions, or raise LinkLeft naming the file.

    >>> without_links("Try [it](../exercises/a.ipynb), [solution](../solutions/a.ipynb).", MARKDOWN, "a page")
    'Try [it](../exercises/a.ipynb).'
    """
    text = pattern.sub("", text)
    if left := LEFT.search(text):
        raise LinkLeft(f"{where} links to a solution in a sentence of its own: {left[0]}")
    return text


def make(site: Path, target: Path) -> int:
    """Copy the site at `site` to `target` without solutions; return how many files held a link to one."""
    if not (site / "solutions").is_dir():
        raise FileNotFoundError(f"no solutions in {site}; run: make book")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(site, target, ignore=lambda folder, names: ["solutions"] if Path(folder) == site else [])
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
    """Run the command line; return 1 when a solution would stay in the copy."""
    site, target = (Path(word) for word in (*sys.argv[1:3], *(BUILT / "html", BUILT / "student")[len(sys.argv) - 1 :]))
    try:
        changed = make(site, target)
    except (FileNotFoundError, LinkLeft) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{target}/index.html opens the book without solutions; {changed} files lost their links to them.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
