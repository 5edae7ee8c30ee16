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
def test_page_loads_from_the_server_and_from_a_file(page_at, name):
    page_at(name)
    page_at((check_site.SITE / name).as_uri())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible(page_at, serious_violations, name, dark):
    page = page_at(name, dark=dark)
    page.wait_for_timeout(300)  # the theme's transitions: half-way colours would be judged
    assert serious_violations(page) == []


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_a_phone(page_at, name):
    page = page_at(name, width=390, height=844)
    page.wait_for_timeout(300)
    overflow = page.evaluate(OVERFLOW)
    assert overflow["page"] <= 0, overflow["first"]


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
    loads = []
    for _ in range(3):
        loads.append(page.evaluate(TIMES))
        page.reload(wait_until="load")
    interactive_ms = min(max(times["dom"], times["ready"]) for times in loads)
    size_bytes = loads[0]["bytes"]
    with capsys.disabled():
        print(f"\n{name}: interactive after {interactive_ms:.0f} ms, {size_bytes / 1000:.0f} kB with fonts ", end="")
    assert size_bytes <= check_site.MAX_PAGE_BYTES


@pytest.mark.parametrize("look", ["desktop", "phone", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_take_pictures(page_at, pictures, name, look):
    page = page_at(name, width=390 if look == "phone" else 1280, dark=look == "dark")
    page.wait_for_timeout(500)
    file = pictures / f"{name.removesuffix('.html')}-{look}.png"
    page.screenshot(path=file, full_page=True)
    assert file.stat().st_size > 5000
