"""Check the built site without a browser: what pages load, weigh, link to and offer for download.

    python tools/check_site.py [folder, by default _build/html]

Each check returns a list of sentences, one per problem; no problem, no sentence.
"""

import datetime
import json
import re
import sys
import tomllib
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
MAX_PAGE_BYTES = 2_500_000
LOADING_LINKS = {"stylesheet", "preload", "modulepreload", "icon", "shortcut icon", "prefetch", "preconnect"}


class Page(HTMLParser):
    """The parts of an HTML page that the checks look at."""

    def __init__(self, file):
        super().__init__()
        self.text = file.read_text(encoding="utf-8")
        self.ids, self.loads, self.links, self.menu, self.unnamed = set(), [], [], [], []
        self.svg_depth = 0
        self.open_svg = None
        self.in_menu = False
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attrs = {name: value or "" for name, value in attrs}
        self.ids.update(attrs[key] for key in ("id", "name") if key in attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed") and "src" in attrs:
            self.loads.append(attrs["src"])
        if tag == "link" and attrs.get("rel", "").lower() in LOADING_LINKS:
            self.loads.append(attrs["href"])
        if tag == "nav":
            self.in_menu = "bd-links" in attrs.get("class", "")
        if tag == "a" and "href" in attrs:
            (self.menu if self.in_menu else self.links).append(attrs["href"])
        if tag == "img" and not attrs.get("alt", "").strip():
            self.unnamed.append(f"<img src={attrs.get('src', '')[:60]!r}> has no alt text")
        if tag == "svg":
            self.start_svg(attrs)
        elif attrs.get("role") == "img" and not (attrs.get("aria-label") or attrs.get("aria-labelledby")):
            self.unnamed.append(f"<{tag} role=img> on line {self.getpos()[0]} has no aria-label")

    def start_svg(self, attrs):
        named = attrs.get("aria-label") or attrs.get("aria-labelledby") or attrs.get("aria-hidden") == "true"
        if self.svg_depth == 0 and not named:
            self.unnamed.append(f"<svg> on line {self.getpos()[0]} has neither aria-label nor aria-hidden")
        self.svg_depth += 1

    def handle_endtag(self, tag):
        if tag == "nav":
            self.in_menu = False
        if tag == "svg":
            self.svg_depth -= 1

    @property
    def has_code(self):
        return 'class="cell docutils' in self.text


@lru_cache
def page(file):
    return Page(file)


def pages(site=SITE):
    """Return the site's pages; an error says how to make them."""
    files = sorted(Path(site).glob("*.html"))
    if not files:
        raise FileNotFoundError(f"no pages in {site}; run: make book")
    return files


def is_remote(url):
    return url.startswith("//") or urlsplit(url).scheme not in ("", "data")


def local_file(file, url):
    """Return the file that a relative URL on a page means."""
    return (file.parent / unquote(urlsplit(url).path)).resolve() if urlsplit(url).path else file


def loaded_files(file):
    """Return the local files that a page loads, MathJax's parts included, fonts not (a browser test counts those)."""
    files = {local_file(file, url) for url in page(file).loads if not is_remote(url) and not url.startswith("data:")}
    config = re.search(r"window\.MathJax = (\{.*?\})</script>", page(file).text)
    startup = next((f for f in files if f.name == "startup.js"), None)
    if config and startup:
        parts = json.loads(config[1])["loader"]["load"]
        files |= {startup.parent / f"{part}.js" for part in [*parts, "output/chtml/fonts/tex"]}
    return files


def weight_bytes(file):
    """Return the uncompressed size of a page with what it loads, in bytes."""
    return file.stat().st_size + sum(f.stat().st_size for f in loaded_files(file) if f.exists())


def off_host(site=SITE):
    found = [f"{f.name} loads {url} from another host" for f in pages(site) for url in page(f).loads if is_remote(url)]
    styles = {s for f in pages(site) for s in loaded_files(f) if s.suffix == ".css" and s.exists()}
    remote = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')]+)""")
    texts = {style.name: style.read_text(encoding="utf-8") for style in sorted(styles)}
    return found + [f"{name} loads {url}" for name, text in texts.items() for url in remote.findall(text)]


def missing_files(site=SITE):
    return [
        f"{f.name} loads {s.relative_to(site)}, which does not exist"
        for f in pages(site)
        for s in sorted(loaded_files(f))
        if not s.exists()
    ]


def heavy(site=SITE):
    return [
        f"{f.name} weighs {weight_bytes(f)} bytes, more than {MAX_PAGE_BYTES}"
        for f in pages(site)
        if weight_bytes(f) > MAX_PAGE_BYTES
    ]


def unnamed_images(site=SITE):
    return [f"{f.name}: {text}" for f in pages(site) for text in page(f).unnamed]


def broken_links(site=SITE):
    return [problem for f in pages(site) for url in page(f).links + page(f).menu if (problem := link_problem(f, url))]


def link_problem(file, url):
    if is_remote(url):
        return None
    target, fragment = local_file(file, url), unquote(urlsplit(url).fragment)
    if not target.is_file():
        return f"{file.name} links to {url}, which does not exist"
    if fragment and target.suffix == ".html" and fragment not in page(target).ids:
        return f"{file.name} links to {url}: no such place on that page"
    return None


@lru_cache
def access_dates():
    """Return {address of another host: day on which it was last read, as the book's two lists state it}."""
    dates = tomllib.loads((ROOT / "book" / "links.toml").read_text(encoding="utf-8"))
    for entry in parse_file(ROOT / "book" / "references.bib").entries.values():
        day = entry.fields.get("urldate")
        if "url" in entry.fields:
            dates[entry.fields["url"]] = day
        if "doi" in entry.fields:
            dates[f"https://doi.org/{entry.fields['doi']}"] = day
        if preprint := re.search(r"arXiv:(\d{4}\.\d{5})", entry.fields.get("note", "")):
            dates[f"https://arxiv.org/abs/{preprint[1]}"] = day
    return dates


def is_day(day):
    try:
        return isinstance(day, datetime.date) or bool(datetime.date.fromisoformat(day or ""))
    except ValueError:
        return False


def undated_links(site=SITE):
    """Report links to other hosts that have no access date in book/references.bib or book/links.toml."""
    return [
        f"{f.name} links to {url}, which has no access date in references.bib or links.toml"
        for f in pages(site)
        for url in dict.fromkeys(page(f).links + page(f).menu)
        if is_remote(url) and not url.startswith("mailto:") and not is_day(access_dates().get(url))
    ]


def menu_strangers(site=SITE):
    """Report menu entries that lead to no page of the site."""
    names = {f.name for f in pages(site)}
    return [
        f"{f.name}: the menu has {url}"
        for f in pages(site)
        for url in page(f).menu
        if url != "#" and local_file(f, url).name not in names
    ]


def notebook_problems(site=SITE):
    """Report pages with code that do not offer themselves as a valid notebook."""
    found = []
    for file in pages(site):
        notebook = file.parent / "notebooks" / f"{file.stem}.ipynb"
        if not page(file).has_code:
            continue
        if f"notebooks/{notebook.name}" not in page(file).links:
            found.append(f"{file.name} offers no download of its notebook")
        elif notebook.exists():
            found += invalid_notebook(notebook)
    return found


def invalid_notebook(file):
    try:
        nbformat.validate(nbformat.read(file, as_version=4))
    except (ValueError, nbformat.ValidationError) as error:
        return [f"{file.name} is not a valid notebook: {str(error).splitlines()[0]}"]
    return []


CHECKS = [
    off_host,
    missing_files,
    heavy,
    unnamed_images,
    broken_links,
    undated_links,
    menu_strangers,
    notebook_problems,
]


def main():
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else SITE
    for file in pages(site):
        print(f"{file.name}: {weight_bytes(file) / 1000:.0f} kB without fonts")
    problems = [problem for check in CHECKS for problem in check(site)]
    print("\n".join(problems) or "no problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
