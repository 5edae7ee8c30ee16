"""The book as one PDF: nothing is lost on the way to paper, and every link leads somewhere."""

import io
import re
import unicodedata
from collections import Counter

import check_site
import print_book
import pytest
from pypdf import PdfReader

MAX_BYTES = 15_000_000
A4_PT = (595, 842)
HIDDEN = re.compile(r"remove-(cell|input)")


def squeezed(text):
    """Return `text` without white space, as lines may wrap on paper, without ligatures and with plain quotes."""
    plain = unicodedata.normalize("NFKC", text).translate(str.maketrans("‘’“”", "''\"\""))
    return re.sub(r"\s+", "", plain)


@pytest.fixture(scope="module")
def pdf(browser):
    return print_book.print_book(browser)


@pytest.fixture(scope="module")
def reader(pdf):
    return PdfReader(io.BytesIO(pdf))


@pytest.fixture(scope="module")
def texts(reader):
    """The text of each sheet, without white space; it begins with the sheet's number."""
    return [squeezed(page.extract_text()) for page in reader.pages]


@pytest.fixture(scope="module")
def begins(reader):
    """{name of a place: index of the sheet on which it begins}"""
    return {
        name.removeprefix("/"): reader.get_destination_page_number(place)
        for name, place in reader.named_destinations.items()
    }


def annotations(reader):
    """Yield (index of the sheet, link) for all links."""
    for index, page in enumerate(reader.pages):
        for link in page.get("/Annots") or ():
            if link.get_object()["/Subtype"] == "/Link":
                yield index, link.get_object()


def sources():
    """Return {page: the Markdown that the site was built from}, in the book's order."""
    folder = check_site.SITE / "_sources"
    pages = [name.removesuffix(".html") for name in print_book.page_names()]
    return {page: (folder / f"{page}.md").read_text(encoding="utf-8") for page in pages}


def headings(source):
    """Return the first two levels of headings, without the marks of MyST."""
    prose = re.sub(r"```.*?```", "", source, flags=re.DOTALL)
    return [re.sub(r"[`*]", "", title).strip() for title in re.findall(r"^##? (.+)$", prose, re.MULTILINE)]


def shown_code(source):
    """Return the lines of the code cells that a page shows, at once or on a click."""
    cells = re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", source, re.DOTALL)
    lines = [line for cell in cells if not HIDDEN.search(cell.split("\n")[0]) for line in cell.split("\n")]
    return [line for line in lines if line.strip() and not line.startswith(":tags:")]


def test_size(pdf, reader):
    assert 100_000 < len(pdf) <= MAX_BYTES
    # Two sheets for the index and the contents, and one for each other page, at the least.
    assert len(sources()) + 1 <= len(reader.pages) <= 40 * len(sources())
    assert {tuple(map(round, page.mediabox[2:])) for page in reader.pages} == {A4_PT}


def test_each_page_of_the_book_begins_on_a_sheet_of_its_own(begins, texts):
    starts = [begins[page] for page in list(sources())[1:]]
    assert starts == sorted(set(starts)) and starts[0] >= 2
    for page, start in zip(list(sources())[1:], starts, strict=True):
        assert squeezed(headings(sources()[page])[0]) in texts[start], page


def test_every_title_is_printed_and_in_the_contents(reader, begins, texts):
    front, body = "".join(texts[: begins["01-roofline"]]), "".join(texts[begins["01-roofline"] :])
    for page, source in sources().items():
        for title in headings(source):
            assert squeezed(title) in front, f"{page}: {title!r} is not in the contents"
            assert page == "index" or squeezed(title) in body, f"{page}: {title!r} is not printed"
    outline = Counter(squeezed(each["/Title"]) for each in flat(reader.outline))
    assert {squeezed(title) for source in sources().values() for title in headings(source)} <= set(outline)


def flat(outline):
    for each in outline:
        yield from flat(each) if isinstance(each, list) else [each]


def test_the_contents_name_the_right_pages(reader, begins, texts):
    """The number behind a title is the number at the foot of the sheet to which its link leads."""
    contents = "".join(f"{sheet.extract_text()}\n" for sheet in reader.pages[1 : begins["01-roofline"]])
    lines = [squeezed(line) for line in contents.splitlines()]
    for page, source in list(sources().items())[1:]:
        sheet = begins[page]
        assert f"{squeezed(headings(source)[0])}{sheet + 1}" in lines, page
        assert texts[sheet].startswith(str(sheet + 1)), "the number at the foot"


def test_page_numbers_that_never_hold_are_not_printed(browser, monkeypatch):
    prints = iter(range(100))
    monkeypatch.setattr(print_book, "page_numbers", lambda pdf: {"notation": next(prints)})
    with pytest.raises(print_book.UnstableError, match="still changed after 5 prints"):
        print_book.print_book(browser, names=["notation.html"])


def test_every_link_leads_to_a_place_in_the_book_or_to_a_known_address(reader, begins):
    inside, outside = set(), set()
    for _, link in annotations(reader):
        if "/Dest" in link:
            inside.add(str(link["/Dest"]).removeprefix("/"))
        else:
            assert link["/A"]["/S"] == "/URI", link
            outside.add(str(link["/A"]["/URI"]).rstrip("/"))
    assert inside <= set(begins)
    known = {url.rstrip("/") for url in check_site.access_dates()}
    assert outside <= known, "a link to a file or to another address than those of the site"
    assert len(inside) > 200 and len(outside) >= 5


def test_links_cross_from_page_to_page(reader, begins, texts):
    """A term in section 1 leads to its entry in the glossary, and a citation to its source."""
    first, second = begins["01-roofline"], begins["02-decode-and-prefill"]
    links = [str(link.get("/Dest", "")) for sheet, link in annotations(reader) if first <= sheet < second]
    names = {name.removeprefix("/") for name in links}
    assert "glossary--term-ridge" in names
    assert "ridge" in texts[begins["glossary--term-ridge"]]
    cited = {begins[name] for name in names if name.startswith("references--")}
    assert any("Roofline:aninsightful" in texts[sheet] for sheet in cited)


def test_all_code_is_printed(texts):
    """Each line of each cell, those that a page hides until a click as well."""
    everything = "".join(texts)
    for page, source in sources().items():
        lost = [line for line in shown_code(source) if squeezed(line) not in everything]
        assert lost == [], page
    assert sum(len(shown_code(source)) for source in sources().values()) > 1000


def test_figures_are_printed_with_their_words(texts):
    everything = "".join(texts)
    for name in print_book.page_names():
        html = (check_site.SITE / name).read_text(encoding="utf-8")
        labels = re.findall(r"<text[^>]*>([A-Za-z][A-Za-z ,/]{5,})</text>", html)
        assert [each for each in labels if squeezed(each) not in everything] == [], name
    assert "intensity,FLOP/byte" in everything


def test_sliders_become_their_tables_and_answers_come_last(texts, begins):
    first = "".join(texts[begins["01-roofline"] : begins["02-decode-and-prefill"]])
    assert "Thepageonthewebletsyouchangethis." in first and "JavaScript" not in first
    question, answers = first.index("Predict"), first.index("Answersofthissection")
    answer = re.search(r"```\{dropdown\} The answer\n(.*?)\n", sources()["01-roofline"])
    assert answer is None or question < answers < first.index(squeezed(answer[1]))


def test_what_is_too_wide_for_the_paper_is_not_cut_off_silently(browser, tmp_path):
    (tmp_path / "_static").symlink_to(check_site.SITE / "_static")
    html = (check_site.SITE / "index.html").read_text(encoding="utf-8")
    wide = '<article class="bd-article"><h1 id="a">A</h1><p style="width: 900px">wide</p></article>'
    html = re.sub(r"<article.*</article>", wide, html, flags=re.DOTALL)
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    with pytest.raises(print_book.CutOff, match="900px"):
        print_book.print_book(browser, tmp_path, ["index.html"])
