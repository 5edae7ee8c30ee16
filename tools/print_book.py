"""Print the built book into one PDF: all pages, with contents, page numbers and links that lead inside it.

    python tools/print_book.py [folder, by default _build/html] [file, by default _build/across-the-ridge.pdf]

Chromium prints. Sliders become their picture and table, and answers move to the end of their section.
"""

import io
import sys
from pathlib import Path

import check_site
import yaml
from chromium import CHROMIUM_ARGS, chromium
from playwright.sync_api import sync_playwright
from pypdf import PdfReader

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = (Path(__file__).parent / "print_book.js").read_text(encoding="utf-8")
STYLE = ROOT / "book" / "assets" / "print.css"
FILE = ROOT / "_build" / "across-the-ridge.pdf"
# A4 with the margins of print.css: what is left for text, in whole CSS pixels of 1/96 inch, and one to spare.
TEXT_WIDTH_PX = int((210 - 2 * 16) / 25.4 * 96) - 1
SMALLEST_PX = 9  # 6.75 pt, for wide tables and listings
MAX_PRINTS = 5


class CutOff(ValueError):
    """Something on a page is wider than the paper."""


class UnstableError(RuntimeError):
    """Each print moves places to other pages than the one before said."""


def page_names():
    """Return the pages of the book in its order, as names of files of the site."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [*toc.get("chapters", []), *(each for part in toc.get("parts", []) for each in part["chapters"])]
    return [f"{name}.html" for name in (toc["root"], *(chapter["file"] for chapter in chapters))]


def page_numbers(pdf):
    """Return {name of a place: number of the page on which it begins}, from 1."""
    reader = PdfReader(io.BytesIO(pdf))
    places = reader.named_destinations.items()
    return {name.removeprefix("/"): reader.get_destination_page_number(place) + 1 for name, place in places}


def print_book(browser, site=check_site.SITE, names=None):
    """Return the PDF of the site's pages `names`, by default the whole book.

    Raises CutOff, which says what is too wide for it, and UnstableError if its page numbers never hold.
    """
    names = names or page_names()
    pages = [{"name": name, "html": (site / name).read_text(encoding="utf-8")} for name in names]
    context = browser.new_context(color_scheme="light", viewport={"width": TEXT_WIDTH_PX, "height": 1000})
    try:
        page = context.new_page()
        page.goto((site / names[0]).as_uri(), wait_until="load")
        page.add_script_tag(content=SCRIPT)
        page.emulate_media(media="print", color_scheme="light")
        page.evaluate("pages => mergeForPrint(pages)", pages)
        page.add_style_tag(content=STYLE.read_text(encoding="utf-8"))
        if cut := page.evaluate("smallest => fitAndFindCut(smallest)", SMALLEST_PX):
            raise CutOff("wider than the paper:\n" + "\n".join(cut))
        settings = dict(prefer_css_page_size=True, print_background=True, outline=True, tagged=True)
        # A print says on which page each place is, and the next one shows it, which can move a place across pages.
        shown = None
        for _ in range(MAX_PRINTS):
            pdf = page.pdf(**settings)
            if (numbers := page_numbers(pdf)) == shown:
                return pdf
            page.evaluate("numbers => setPageNumbers(numbers)", shown := numbers)
        raise UnstableError(f"page numbers still changed after {MAX_PRINTS} prints")
    finally:
        context.close()


def main():
    site = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else check_site.SITE
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else FILE
    executable = chromium()
    if executable is None:
        print("Printing needs Chromium; get it with: apt-get install chromium libatomic1", file=sys.stderr)
        return 1
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGS)
        pdf = print_book(browser, site)
        browser.close()
    file.write_bytes(pdf)
    print(f"{file}: {len(PdfReader(file).pages)} pages, {len(pdf) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
