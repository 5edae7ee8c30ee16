"""The appendix: the symbol table against the sections, the glossary, and the hardware table against its data."""

import ast
import html
import re
from pathlib import Path

import pytest
import sympy

from rooflab.hardware import devices
from rooflab.ledger import SYMBOLS

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "book"
SITE = ROOT / "_build" / "html"
SECTIONS = [BOOK / f"{name}.md" for name in re.findall(r"file: (\d\d-\S+)", (BOOK / "_toc.yml").read_text("utf-8"))]
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::tags:[^\n]*\n)?(.*?)^```$", re.DOTALL | re.MULTILINE)
# Commands of LaTeX that are letters of a formula; others are operators and layout.
LETTERS = ("beta", "lambda")


def run_page(name):
    """Return the names that a page's cells define, and what its cells show."""
    shown, names = [], {}
    for source in CELL.findall((BOOK / f"{name}.md").read_text(encoding="utf-8")):
        *body, last = ast.parse(source).body
        value = isinstance(last, ast.Expr)
        exec(compile(ast.Module(body if value else [*body, last], []), name, "exec"), names)
        if value:
            shown.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
    return names, shown


@pytest.fixture(scope="module")
def notation():
    return run_page("notation")[0]


@pytest.fixture(scope="module")
def hardware():
    return run_page("hardware")[0]


# Notation --------------------------------------------------------------------------------------------------------


def symbols_in(latex):
    r"""Return the (letter, subscript) pairs of a formula.

    >>> symbols_in(r"\frac{2 M B_N}{\beta} + t_\text{launch}")
    [('M', ''), ('B', 'N'), ('\\beta', ''), ('t', 'launch')]
    """
    latex = re.sub(r"_\{?\\text\{([^{}]*)\}\}?", r"_{\1}", latex)
    latex = re.sub(r"\\(?:text|mathrm|operatorname)\{[^{}]*\}", " ", latex)
    found = re.finditer(r"(\\[A-Za-z]+|[A-Za-z])(?:_(?:\{([^{}]*)\}|([A-Za-z0-9])))?", latex)
    pairs = []
    for match in found:
        letter, subscript = match[1], match[2] or match[3] or ""
        if letter.startswith("\\") and letter[1:] not in LETTERS:
            # The subscript of \lim or \max holds symbols of its own.
            pairs += symbols_in(subscript) if subscript else []
        else:
            pairs.append((letter, subscript))
    return pairs


def prose_formulas(text):
    """Return the formulas of a page outside its cells."""
    return re.findall(r"\$\$?([^$]+)\$\$?", CELL.sub("", text))


def shown_formulas(page):
    """Return the formulas that the cells of a built page show."""
    built = SITE / f"{page.stem}.html"
    assert built.is_file(), f"no {built}; run: make book"
    found = re.findall(r'class="output text_latex math[^"]*">\s*\\\[(.*?)\\\]', built.read_text("utf-8"), re.DOTALL)
    return [html.unescape(each).replace(r"\displaystyle", "") for each in found]


def problems(section, formulas, notation):
    """Return what the notation page does not explain, and which of its letters a section uses."""
    table, labels, local = notation["symbols"], notation["LABELS"], notation["LOCAL"]
    unknown, used = [], set()
    for formula in formulas:
        for letter, subscript in symbols_in(formula):
            name = f"{letter}_{{{subscript}}}" if subscript else letter
            used.add(name)
            if name in table or (section, name) in local:
                continue
            if not (subscript in labels and letter in table):
                unknown.append(f"{name} in {formula}")
    return unknown, used


@pytest.mark.parametrize("page", SECTIONS, ids=lambda page: page.stem)
def test_every_symbol_of_a_section_is_explained(page, notation):
    section = int(page.stem[:2])
    formulas = prose_formulas(page.read_text(encoding="utf-8")) + shown_formulas(page)
    assert formulas
    unknown, used = problems(section, formulas, notation)
    assert unknown == [], "add it to book/notation.md, or use a symbol that is there"
    stale = [letter for where, letter in notation["LOCAL"] if where == section and letter not in used]
    assert stale == [], f"section {section} no longer uses these; take them out of LOCAL in book/notation.md"


@pytest.mark.parametrize("page", SECTIONS, ids=lambda page: page.stem)
def test_a_local_letter_does_not_meet_its_namesake(page, notation):
    """A section whose own letter is also in the table shows no formula of the ledger with that symbol."""
    section = int(page.stem[:2])
    own = {letter for where, letter in notation["LOCAL"] if where == section} & set(notation["symbols"])
    _, used = problems(section, shown_formulas(page), notation)
    assert own & used == set()


def test_the_lint_reads_all_sections_and_what_their_cells_show():
    assert len(SECTIONS) >= 6
    for page in SECTIONS:
        assert shown_formulas(page) or prose_formulas(page.read_text(encoding="utf-8")), page.name
    assert sum(len(shown_formulas(page)) for page in SECTIONS) >= 20


def test_the_lint_finds_a_strange_symbol(notation):
    assert problems(1, [r"\frac{\mu}{2} + 3 z + B_{q}"], notation)[0] == [
        r"z in \frac{\mu}{2} + 3 z + B_{q}",
        r"B_{q} in \frac{\mu}{2} + 3 z + B_{q}",
    ]
    assert problems(2, ["y = x"], notation)[0], "the letters of axpy are at home in section 1 only"
    assert problems(1, [r"Q_\text{break-even} \ge \lim_{L \to \infty} I_{naive}"], notation)[0] == []


def test_every_symbol_of_the_ledger_is_in_the_table_once(notation):
    latex = [sympy.latex(symbol) for symbol in SYMBOLS.values()]
    assert len(set(latex)) == len(latex), "two symbols print alike"
    assert list(notation["symbols"]) == [*latex, *notation["MORE"]]
    meanings = [meaning for _, meaning, _ in notation["symbols"].values()]
    assert len(set(meanings)) == len(meanings) and all(meanings), "two symbols have one meaning"
    assert not set(latex) & set(notation["MORE"])
    assert all(unit and used for unit, _, used in notation["symbols"].values()), "each has a unit and a use"


# Glossary --------------------------------------------------------------------------------------------------------


def glossary():
    """Return (terms, definition) pairs in the order of the page; an abbreviation is a second term."""
    text = (BOOK / "glossary.md").read_text(encoding="utf-8")
    body = re.search(r"^```\{glossary\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]
    return [
        (heads.splitlines(), definition)
        for heads, definition in re.findall(r"^((?:\S.*\n)+)((?:  .*\n)+)", body, re.MULTILINE)
    ]


def anchors(page):
    """Return the anchors that MyST gives a page's headings."""
    headings = re.findall(r"^#{1,3} (.+?) *$", CELL.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_glossary_has_sorted_and_unique_terms():
    firsts = [terms[0] for terms, _ in glossary()]
    every = [term.lower() for terms, _ in glossary() for term in terms]
    assert len(firsts) >= 60
    assert len(set(every)) == len(every)
    assert firsts == sorted(firsts, key=str.lower)


def wrong_links(definition):
    """Return the links of a definition that lead to no heading of a page."""
    links = re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", definition)
    exists = {name: (BOOK / name).is_file() for name, _ in links}
    wrong = [name for name, anchor in links if not exists[name] or anchor not in anchors(BOOK / name)]
    return wrong if links else ["no link"]


def test_every_term_is_short_and_links_to_its_section():
    for (term, *_), definition in glossary():
        assert wrong_links(definition) == [], term
        sentences = definition.strip().splitlines()
        assert 1 <= len(sentences) <= 3, term
        assert all(re.search(r"[.:]$", line) for line in sentences), term


def test_the_link_check_finds_a_wrong_anchor():
    assert wrong_links("See [section 1](01-roofline.md#nowhere).") == ["01-roofline.md"]
    assert wrong_links("See [section 9](09-nothing.md#derive).") == ["09-nothing.md"]
    assert wrong_links("No link at all.") == ["no link"]
    assert wrong_links("See [section 1](01-roofline.md#derive).") == []


def test_the_sections_link_terms_that_exist():
    terms = {term.lower() for terms, _ in glossary() for term in terms}
    for page in SECTIONS:
        for body in re.findall(r"\{term\}`([^`]+)`", page.read_text(encoding="utf-8")):
            target = re.search(r"<([^<>]+)>$", body)
            assert (target[1] if target else body).lower() in terms, f"{page.name}: {body}"


# Hardware --------------------------------------------------------------------------------------------------------

TABLES = ("memory", "bandwidth", "cache", "half", "narrow", "integer", "others", "sums", "sparse")


def cited(cell):
    """Return (figure, number of its source), or None for a cell without one.

    >>> cited("989.4 [6]"), cited("989.4")
    (('989.4', 6), None)
    """
    match = re.fullmatch(r"(\S+) \[(\d+)\]", cell)
    return (match[1], int(match[2])) if match else None


def test_every_device_is_in_the_tables(hardware):
    titles = [gpu.title for gpu in devices().values()]
    for name in ("memory", "bandwidth", "half", "ridges"):
        assert [row[0] for row in hardware[name].rows] == titles, name


def missing_figures(names):
    """Return the peaks and bandwidths of the data that no table has with the source that the data names."""
    numbers = names["sources"]
    cells = [(row[0], cell) for name in TABLES for row in names[name].rows for cell in row[1:]]
    shown = {(title.partition(", ")[0], *found) for title, cell in cells if (found := cited(cell))}
    missing = []
    for gpu in devices().values():
        wanted = [(row, f"{row.flop_per_s / 1e12:g}") for row in gpu.peaks]
        wanted += [(row, f"{row.bytes_per_s / 1e12:g}") for row in gpu.memories if row.bytes_per_s]
        for row in gpu.memories:
            wanted.append((row, f"{row.capacity_bytes / (2**20 if row.level == 'l2' else 1e9):.4g}"))
        for row, value in wanted:
            number = numbers.get((row.source, row.date, row.strength))
            if (gpu.title.partition(", ")[0], value, number) not in shown:
                missing.append(f"{gpu.id}: {value}")
    return missing


def test_every_figure_is_shown_with_its_source(hardware):
    assert missing_figures(hardware) == []
    assert sorted(hardware["sources"].values()) == list(range(1, len(hardware["sources"]) + 1))
    for source, date, strength in hardware["sources"]:
        assert source and date and strength != "unstated"


def test_no_table_has_a_figure_without_a_source(hardware):
    bare = []
    for name in ("half", "narrow", "integer", "others"):
        bare += [row for row in hardware[name].rows if any(cell and not cited(cell) for cell in row[1:])]
    for name, column in {"memory": 1, "bandwidth": 1, "cache": 2, "sums": 1, "sparse": 1}.items():
        bare += [row for row in hardware[name].rows if not cited(row[column])]
    for name in ("matrix_clocks", "vector_clocks"):
        bare += [row for row in hardware[name].rows if not cited(row[3])]
    assert bare == []


def test_the_check_finds_a_missing_figure(hardware):
    without = dict(hardware) | {"narrow": type(hardware["narrow"])(("device",), ())}
    assert "b200-hgx: 9000" in missing_figures(without)


def test_the_tables_fit_a_phone(hardware):
    """On a phone of 390 pixels 358 are left: 80 for the first column, which wraps, and 24 of padding for each other."""
    for name in (*TABLES, "matrix_clocks", "vector_clocks", "ridges"):
        table = hardware[name]
        widths = [max(len(row[at]) for row in table.rows) for at in range(1, len(table.header))]
        assert 80 + sum(24 + 9 * width for width in widths) <= 358, (name, widths)
