"""Every page of the site, as a reader's browser meets it."""

import check_site
import pytest

SECTION = "01-roofline.html"
PAGES = [file.name for file in sorted(check_site.SITE.glob("*.html"))] or [SECTION]

TIMES = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const [ready] = performance.getEntriesByName("rooflab-ready");  // set when the explorers are drawn
  const loaded = performance.getEntriesByType("resource").map(entry => entry.decodedBodySize);
  return {
    dom: page.domContentLoadedEventEnd,
    ready: ready.startTime,
    bytes: loaded.reduce((a, b) => a + b, page.decodedBodySize),
  };
}"""
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll("article *")].filter(e => e.getBoundingClientRect().right > width + 1);
  return {
    page: document.documentElement.scrollWidth - width,
    first: wide.length ? wide[0].outerHTML.slice(0, 200) : "",
  };
}"""


@pytest.mark.parametrize("name", PAGES)
def test_page_loads_from_a_file(page_at, name):
    """From the server, the tests below load each page."""
    page_at((check_site.SITE / name).as_uri())


COLOUR = "color-contrast"  # axe's slowest rule by far: it looks behind each word of each listing
# Colours do not depend on the width, nor the rest on the colours: so each look is judged by what it changes.
LOOKS = {
    "desktop": (dict(width=1280), {}),
    "dark": (dict(width=1280, dark=True), dict(only=[COLOUR])),
    "phone": (dict(width=390, height=844), dict(without=[COLOUR])),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_fits(page_at, violations, pictures, name, look):
    """Judge a page by axe, see that it does not scroll sideways, and take its picture."""
    window, rules = LOOKS[look]
    page = page_at(name, **window)
    page.wait_for_timeout(500)  # the theme's transitions: half-way colours would be judged; and MathJax
    overflow = page.evaluate(OVERFLOW)
    assert overflow["page"] <= 0, overflow["first"]
    file = pictures / f"{name.removesuffix('.html')}-{look}.png"
    page.screenshot(path=file, full_page=True)
    assert file.stat().st_size > 5000
    assert violations(page, **rules) == []


@pytest.mark.parametrize("name", ["index.html", "search.html", "references.html"])
def test_page_is_accessible_on_a_dark_phone(page_at, violations, name):
    """All rules at once, where the pages differ in nothing but their text from the others."""
    page = page_at(name, width=390, height=844, dark=True)
    page.wait_for_timeout(500)
    assert violations(page) == []


def test_axe_finds_what_it_looks_for(page_at, violations):
    """Each of the three ways to call it reports a fault of its kind, and only that."""
    page = page_at("index.html")
    page.evaluate("""document.querySelector("article").insertAdjacentHTML("beforeend",
      "<p style='color: #999; background: #aaa'>pale</p><img src='data:,'><h6>too deep</h6>")""")
    kinds = lambda **rules: {each.split(":")[0] for each in violations(page, **rules)}  # noqa: E731
    assert kinds() == {COLOUR, "image-alt", "heading-order"}
    assert kinds(only=[COLOUR]) == {COLOUR}
    assert kinds(without=[COLOUR]) == {"image-alt", "heading-order"}


def test_formulas_are_typeset(page_at):
    page = page_at(SECTION)
    page.locator("mjx-container").first.wait_for()
    assert page.locator("mjx-merror").count() == 0
    assert page.locator("mjx-assistive-mml").count() > 0


def test_icons_show(page_at):
    page = page_at(SECTION)
    page.locator(".article-header-buttons svg").first.wait_for()
    empty = page.locator("svg.svg-inline--fa").evaluate_all(
        "icons => icons.filter(i => !i.querySelector('path')?.getAttribute('d')).map(i => i.outerHTML)"
    )
    assert empty == []
    assert page.locator("i.fas, i.fa-solid, i.far, i.fab, i.fa-regular").count() == 0


def test_search_finds_the_section(page_at):
    page = page_at("search.html?q=ridge")
    page.locator(f"#search-results a[href*='{SECTION}']").first.wait_for()


def test_page_offers_its_notebook(page_at):
    page = page_at(SECTION)
    page.get_by_role("button", name="Download this page").click()
    link = page.get_by_role("link", name=".ipynb")
    assert link.get_attribute("href") == f"notebooks/{SECTION.removesuffix('.html')}.ipynb"


@pytest.mark.parametrize("name", PAGES)
def test_page_is_light(page_at, name, capsys):
    """Weigh what a page really loads, and print how soon it is interactive (not asserted: that is the machine's)."""
    page = page_at(name)
    page.wait_for_timeout(1000)  # MathJax loads its parts and fonts
    times = page.evaluate(TIMES)
    interactive_ms, size_bytes = max(times["dom"], times["ready"]), times["bytes"]
    with capsys.disabled():
        print(f"\n{name}: interactive after {interactive_ms:.0f} ms, {size_bytes / 1000:.0f} kB with fonts ", end="")
    assert size_bytes <= check_site.MAX_PAGE_BYTES
