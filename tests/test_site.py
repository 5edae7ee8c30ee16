"""The built site, checked without a browser. `make test` builds it first."""

import re
import tomllib
from urllib.parse import unquote, urlsplit

import check_site
import nbformat
import pytest

TEXTS = [check_site.ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
NOTEBOOKS = [
    file
    for folder in ("notebooks", "exercises", "solutions")
    for file in sorted((check_site.ROOT / folder).glob("*.ipynb"))
]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^()\s]+)\)")


@pytest.mark.parametrize("check", check_site.CHECKS, ids=lambda check: check.__name__)
def test_site(check):
    assert check() == []


def test_the_checks_find_what_they_look_for(tmp_path):
    (tmp_path / "index.html").write_text(
        '<nav class="bd-links"><a href="02-unwritten.html">x</a></nav>'
        '<script src="https://example.org/x.js"></script><img src="a.png"><svg></svg><a href="#nowhere">y</a>'
        '<a href="https://example.org/">z</a>'
        '<div class="cell docutils container"></div>' + "x" * check_site.MAX_PAGE_BYTES,
        encoding="utf-8",
    )
    silent = [check.__name__ for check in check_site.CHECKS if not check(tmp_path)]
    assert silent == []


def test_a_line_does_not_end_between_a_number_and_its_unit():
    """In sentences; code, formulas and printed lines keep their spaces."""
    number = r"(?<![\w.])\d[\d.,]*{space}(?:[kMGTP]?FLOP|[kMGTP]i?B|[mµn]?s|[MG]Hz|W|%)(?!\w)"
    plain, joined = (re.compile(number.format(space=space)) for space in (" ", "\u00a0"))
    found, torn = 0, {}
    for file in check_site.pages():
        text = re.sub(r"(?s)<(pre|code|script|figure|svg)\b.*?</\1>", "", check_site.page(file).text)
        sentences = re.findall(r"(?s)<p>(.*?)</p>", re.sub(r"\\[(].*?\\[)]", "", text))
        found += sum(len(joined.findall(each)) for each in sentences)
        torn[file.name] = [each for each in sentences if plain.search(each)]
        verbatim = re.findall(r"(?s)<(pre|code)\b(.*?)</\1>|\\[(].*?\\[)]", check_site.page(file).text)
        assert not any("\u00a0" in "".join(each) for each in verbatim)
    assert {name: each for name, each in torn.items() if each} == {}
    assert found > 300


def test_every_address_is_dated_and_those_of_links_toml_are_on_the_site():
    assert [url for url, day in check_site.access_dates().items() if not check_site.is_day(day)] == []
    linked = {url for file in check_site.pages() for url in check_site.page(file).links}
    listed = tomllib.loads((check_site.ROOT / "book" / "links.toml").read_text(encoding="utf-8"))
    assert [url for url in listed if url not in linked] == []


@pytest.mark.parametrize("day", [None, "", "yesterday", "2026-02-30"])
def test_what_is_no_day_is_no_access_date(day):
    assert not check_site.is_day(day)


def links_of(file):
    """Return the addresses that a text, or the text cells of a notebook, links to."""
    if file.suffix == ".ipynb":
        cells = nbformat.read(file, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = file.read_text(encoding="utf-8")
    return LINK.findall(re.sub(r"`[^`\n]*`", "", text))


@pytest.mark.parametrize("file", [*TEXTS, *NOTEBOOKS], ids=lambda file: file.name)
def test_links_in_the_repository_resolve(file):
    """A file that a text or a notebook names is there, and a link to another host has its access date."""
    urls = links_of(file)
    remote = {url for url in urls if check_site.is_remote(url)}
    paths = {unquote(urlsplit(url).path) for url in urls if url not in remote}
    assert [path for path in paths if not (file.parent / path).exists()] == []
    assert [url for url in remote if url not in check_site.access_dates()] == []


def test_links_of_texts_are_seen():
    assert any("CONTRIBUTING.md" in links_of(file) for file in TEXTS)
    assert sum(len(links_of(file)) for file in NOTEBOOKS) > 100


def test_no_site_says_how_to_build_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="make book"):
        check_site.pages(tmp_path)
