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
    cut: [...document.querySelectorAll(".prev-next-area a")]
      .filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText),
    first: wide.length ? wide[0].outerHTML.slice(0, 200) : "",
  };
}"""


# Tables that scroll sideways, and cells in which a number is torn from its unit.
TABLES = """() => {
  const isBox = e => e.tagName === "ARTICLE" || getComputedStyle(e).overflowX === "auto";
  const boxOf = e => isBox(e) ? e : boxOf(e.parentElement);
  const wide = [...document.querySelectorAll("article table")].filter(table => {
    const box = boxOf(table.parentElement);
    return box.scrollWidth > box.clientWidth;
  });
  const broken = [...document.querySelectorAll(".rooflab-data td")].filter(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return /^[\\d.,]+ \\S+$/.test(cell.innerText) && range.getClientRects().length > 1;
  });
  return {wide: wide.map(e => e.innerText.slice(0, 80)), broken: broken.map(e => e.innerText)};
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
    assert overflow["cut"] == [], "a link at the foot is wider than its place"
    if look == "desktop":
        assert page.evaluate(TABLES) == {"wide": [], "broken": []}
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


@pytest.mark.parametrize("width", [1280, 390])
def test_printed_columns_stay_columns_and_sentences_wrap(page_at, width):
    page = page_at("measure-your-gpu.html", width=width)
    page.wait_for_timeout(500)  # the theme lets the keyboard reach what scrolls
    printed = page.locator("#check-a-record .output.stream pre").evaluate_all(
        """boxes => boxes.map(box => ({
          text: box.innerText,
          wrapped: getComputedStyle(box).whiteSpace !== "pre",
          beyond: box.scrollWidth - box.clientWidth,
          reached: box.tabIndex === 0,
        }))"""
    )
    compared, shown, *sentences = printed
    assert "1.00x" in compared["text"] and "wall" in shown["text"] and sentences
    for box in (compared, shown):
        assert not box["wrapped"]
        assert box["reached"] == (box["beyond"] > 0) == (width == 390)
    assert {box["beyond"] for box in sentences} == {0}


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
