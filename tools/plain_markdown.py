"""Turn a page's MyST into Markdown that plain Jupyter shows as it should look.

JupyterLab prints an unknown directive as a code box and an unknown role as raw text.
So pages keep to the subset below, and this module rewrites it; anything else is an error that names the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import questions

BOXES = {
    name: name.capitalize()
    for name in (
        "note",
        "tip",
        "hint",
        "important",
        "warning",
        "caution",
        "attention",
        "danger",
        "admonition",
        "margin",
    )
} | {"seealso": "See also", "dropdown": "Details"}
# These only steer Sphinx, so a notebook leaves them out.
DROPPED = ("bibliography", "index", "contents")
DIRECTIVES = (*BOXES, "predict", "figure", "image", "math", "code-block", *DROPPED)
ROLES = ("cite", "cite:p", "cite:t", "ref", "numref", "doc", "math", "term")

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}(?!.*`)|:{3,}|~{3,})(?P<info>.*)")
_DIRECTIVE = re.compile(r"\{(?P<name>[^}]+)\}\s*(?P<argument>.*)")
# A role is a code span with its name in front; a bare code span is matched too, so that nothing inside it changes.
_SPAN = re.compile(r"(?:\{(?P<role>[\w:.+-]+)\})?(?P<ticks>`+)(?P<body>.+?)(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^()\s]+)(?P<title>\s+\"[^\"]*\")?\)")
_TARGET = re.compile(r"^\((?P<label>[\w.:-]+)\)=\s*$")


class MarkdownError(ValueError):
    """Raised when a page uses MyST that a notebook cannot show."""


class Book:
    """What links and citations need to know about all pages: titles, labels, references, which are notebooks."""

    def __init__(self, root: Path):
        self.root = root
        texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((root / "book").glob("*.md"))}
        self.titles = {slug: self._title(text) or slug for slug, text in texts.items()}
        self.headings = {slug: re.findall(r"^#+ (.+?) *$", text, re.MULTILINE) for slug, text in texts.items()}
        self.notebooks = {slug for slug, text in texts.items() if has_code(text)}
        self.labels = {label: (slug, title) for slug, text in texts.items() for label, title in self._labels(text)}
        self._references = None

    @staticmethod
    def _title(text: str) -> str | None:
        found = re.search(r"^# (.+)$", text, re.MULTILINE)
        return found[1].strip() if found else None

    @staticmethod
    def _labels(text: str):
        """Yield (label, the heading below it or None)."""
        lines = [line for line in text.splitlines() if line.strip()]
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if found := _TARGET.match(line):
                yield found["label"], following.lstrip("# ").strip() if following.startswith("#") else None

    def link(self, slug: str) -> str:
        """Return a page's address seen from any folder beside `book`."""
        return f"../notebooks/{slug}.ipynb" if slug in self.notebooks else f"../book/{slug}.md"

    def citation(self, key: str) -> str:
        """Return `[Williams et al., 2009](https://doi.org/...)` for a key of references.bib."""
        if self._references is None:
            from pybtex.database import parse_file

            self._references = parse_file(str(self.root / "book" / "references.bib")).entries
        if key not in self._references:
            raise MarkdownError(f"citation {key!r} is not in book/references.bib")
        entry = self._references[key]
        people = entry.persons.get("author") or entry.persons.get("editor") or []
        names = [re.sub(r"[{}]", "", " ".join(person.prelast_names + person.last_names)) for person in people]
        who = names[0] + " et al." if len(names) > 2 else " and ".join(names) or key
        label = f"{who}, {entry.fields.get('year', 'n.d.')}"
        fields = dict(entry.fields)
        if preprint := re.search(r"arXiv:(\d{4}\.\d{4,5})", fields.get("note", "")):
            fields.setdefault("eprint", preprint[1])
        for field, prefix in (("doi", "https://doi.org/"), ("eprint", "https://arxiv.org/abs/"), ("url", "")):
            if field in fields:
                return f"[{label}]({prefix}{fields[field]})"
        return label


def has_code(text: str) -> bool:
    """Return whether a MyST page holds a code cell."""
    return re.search(r"^```+\{code-cell\}", text, re.MULTILINE) is not None


def plain(source: str, page: Path, book: Book) -> str:
    """Return one Markdown cell of `page` in plain Jupyter's Markdown, or raise MarkdownError naming page and cause."""
    try:
        return _blocks(source, page, book).strip("\n")
    except MarkdownError as error:
        raise MarkdownError(f"{page.relative_to(book.root)}: {error}") from None


def _blocks(source: str, page: Path, book: Book) -> str:
    """Return `source` with its directives and text converted; code blocks stay as they are."""
    out, text, lines = [], [], source.split("\n")
    while lines:
        line = lines.pop(0)
        opening = _FENCE.fullmatch(line)
        if not opening:
            text.append(line)
            continue
        if text:
            out.append(_text("\n".join(text), page, book))
        text, body = [], []
        while lines and not re.fullmatch(rf" *{opening['fence'][0]}{{{len(opening['fence'])},}} *", lines[0]):
            body.append(lines.pop(0))
        if not lines:
            raise MarkdownError(f"block {line.strip()!r} is not closed")
        closing = lines.pop(0)
        directive = _DIRECTIVE.fullmatch(opening["info"].strip())
        if directive:
            out.append(_directive(directive["name"], directive["argument"].strip(), body, page, book))
        else:
            out.append("\n".join([line, *body, closing]))
    if text:
        out.append(_text("\n".join(text), page, book))
    return "\n".join(part for part in out if part is not None)


def _options(body: list[str]) -> tuple[dict, list[str]]:
    """Return a directive's `:name: value` options and the rest of its body."""
    options, rest = {}, list(body)
    while rest and (found := re.fullmatch(r":([\w-]+):\s*(.*)", rest[0].strip())):
        options[found[1]] = found[2]
        rest.pop(0)
    return options, rest


def _directive(name: str, argument: str, body: list[str], page: Path, book: Book) -> str | None:
    """Return plain Markdown for one directive, or None where a notebook leaves it out."""
    if name not in DIRECTIVES:
        allowed = ", ".join(DIRECTIVES)
        raise MarkdownError(f"directive {{{name}}} does not show in a notebook; the allowed subset is {allowed}")
    if name == "predict":
        return _question(argument, body, page, book)
    options, rest = _options(body)
    if name in DROPPED or "only-dark" in options.get("class", ""):
        return None
    if name == "math":
        return "\n".join(["$$", *([argument] if argument else []), *rest, "$$"])
    if name == "code-block":
        return "\n".join([f"```{argument}", *rest, "```"])
    content = _blocks("\n".join(rest), page, book).strip("\n")
    if name in ("figure", "image"):
        picture = f"![{options.get('alt', '')}]({_address(argument, page, book)})"
        return picture + (f"\n\n{content}" if content else "")
    title = _text(argument, page, book) or BOXES[name]
    if name == "dropdown" or "dropdown" in options.get("class", ""):
        # Stays closed in Jupyter as on the page: a reader predicts before looking.
        return _folded(title, content)
    if argument and name not in ("admonition", "margin"):
        # `{note} text` has its first sentence on the directive's line.
        title, content = BOXES[name], f"{title}\n{content}".strip("\n")
    # The blank line at the end keeps text that follows at once out of the quotation.
    return "\n".join(f"> {line}".rstrip() for line in [f"**{title}**", "", *content.split("\n")]) + "\n"


def _question(name: str, body: list[str], page: Path, book: Book) -> str:
    """Return a question as Jupyter can ask it: no script may run there, so each choice unfolds on its own."""
    try:
        asked = questions.parse(name, "\n".join(body))
    except questions.QuestionError as error:
        raise MarkdownError(str(error)) from None
    parts = [
        _blocks(f"**Predict.** {asked.question}", page, book),
        "Decide first, then open the answer that you chose.",
    ]
    parts += [_folded(choice.label, _blocks(choice.response, page, book)) for choice in asked.choices]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>\n"


def _text(text: str, page: Path, book: Book) -> str:
    """Return text outside blocks with targets and comments removed and roles and links rewritten."""
    kept = [line for line in text.split("\n") if not _TARGET.match(line) and not line.startswith("%")]
    text = re.sub(r"^(.*\$\$) \([\w.:-]+\)$", r"\1", "\n".join(kept), flags=re.MULTILINE)
    out, position = [], 0
    for span in _SPAN.finditer(text):
        out.append(_links(text[position : span.start()], page, book))
        out.append(_role(span["role"], span["body"], page, book) if span["role"] else span[0])
        position = span.end()
    out.append(_links(text[position:], page, book))
    return "".join(out)


def _role(role: str, body: str, page: Path, book: Book) -> str:
    if role not in ROLES:
        allowed = ", ".join(ROLES)
        raise MarkdownError(f"role {{{role}}} does not show in a notebook; the allowed subset is {allowed}")
    if role == "math":
        return f"${body}$"
    if role.startswith("cite"):
        cited = "; ".join(book.citation(key.strip()) for key in body.split(","))
        return cited if role == "cite:t" else f"({cited})"
    explicit = re.fullmatch(r"(.+?)\s*<([^<>]+)>", body, re.DOTALL)
    text, target = (explicit[1], explicit[2]) if explicit else (None, body.strip())
    if role == "term":
        return text or target
    if role == "doc":
        return _page_link(target.removeprefix("/").removesuffix(".md"), text, book)
    return _label_link(target, text, book)


def _page_link(slug: str, text: str | None, book: Book) -> str:
    if slug not in book.titles:
        raise MarkdownError(f"link to page {slug!r}, which is not in book/; pages are {', '.join(book.titles)}")
    return f"[{text or book.titles[slug]}]({book.link(slug)})"


def _label_link(label: str, text: str | None, book: Book) -> str:
    if label not in book.labels:
        raise MarkdownError(f"label {label!r} is not defined; labels are {', '.join(book.labels) or 'none'}")
    slug, title = book.labels[label]
    return f"[{text or title or book.titles[slug]}]({book.link(slug)})"


def _links(text: str, page: Path, book: Book) -> str:
    """Return `text` with the targets of its Markdown links and images rewritten for a notebook."""

    def rewrite(link: re.Match) -> str:
        label, target = link["text"], link["target"]
        if target.lstrip("#") in book.labels:
            return _label_link(target.lstrip("#"), label or None, book)
        if target.startswith("#"):
            return f"[{label}]({_anchor(target, page, book)})"
        slug = Path(target.partition("#")[0])
        if slug.suffix == ".md" and (page.parent / slug).resolve().parent == (book.root / "book").resolve():
            return _page_link(slug.stem, label or None, book)
        return f"[{label}]({_address(target, page, book)}{link['title'] or ''})"

    return _LINK.sub(rewrite, text)


def _anchor(target: str, page: Path, book: Book) -> str:
    """Return JupyterLab's anchor of a heading, `#The-ridge`, for the page's own, `#the-ridge`."""
    for heading in book.headings.get(page.stem, []):
        if re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == target[1:]:
            return "#" + heading.replace(" ", "-")
    raise MarkdownError(f"link to {target!r}, but no heading or label of that name")


def _address(target: str, page: Path, book: Book) -> str:
    """Return a link's or picture's address as seen from a folder beside `book`; web addresses stay."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return target
    path = (book.root / "book" / target[1:] if target.startswith("/") else page.parent / target).resolve()
    if not path.exists():
        raise MarkdownError(f"{target!r} does not exist")
    return f"../{path.relative_to(book.root.resolve()).as_posix()}"
