"""A real browser on the built site: a strict server, and pages that fail their test when something goes wrong."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import check_site
import pytest
from axe_playwright_python.sync_playwright import Axe
from chromium import CHROMIUM_ARGS, chromium
from playwright.sync_api import sync_playwright

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:"
)


class StrictHandler(SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="session")
def site_url():
    """The address of the built site, served with the policy above."""
    check_site.pages()  # fails, and says how to build, when there is no site
    handler = functools.partial(StrictHandler, directory=check_site.SITE)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    if chromium() is None:
        pytest.skip("no Chromium, so nothing was tried in a browser; get it with: apt-get install chromium libatomic1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def page_at(browser, site_url):
    """Return a function that opens a page; the test fails at its end if a page logged an error or left this host.

    `path` is relative to the site, or a whole URL such as file:///...
    """
    contexts, trouble = [], []

    def open_page(path, width=1280, height=900, dark=False, js=True):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            java_script_enabled=js,
            color_scheme="dark" if dark else "light",
        )
        contexts.append(context)
        page = context.new_page()
        watch(page, path, trouble, js)
        page.goto(path if "://" in path else f"{site_url}/{path}", wait_until="load")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def watch(page, path, trouble, js):
    """Note in `trouble` every error of the page, CSP violations included, and every request to another host."""
    page.on(
        "console",
        lambda message: (
            message.type == "error" and trouble.append(f"{path}: {message.text} ({message.location.get('url')})")
        ),
    )
    page.on("pageerror", lambda error: trouble.append(f"{path}: {error}"))
    page.on(
        "requestfailed",
        lambda request: is_failure(request, js) and trouble.append(f"{path}: {request.url} failed: {request.failure}"),
    )
    page.on("request", lambda request: is_off_host(request.url) and trouble.append(f"{path} asked for {request.url}"))


def is_failure(request, js):
    """Tell a failed request from one given up because the page went on, or a script refused without JavaScript."""
    return request.failure != "net::ERR_ABORTED" and js


def is_off_host(url):
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "blob", "about") and parts.hostname != "127.0.0.1"


@pytest.fixture(scope="session")
def violations():
    """Return a function that lists what axe finds on a page: by all its rules, `only` by some, or `without` some."""

    def run(page, only=(), without=()):
        # `preload`: axe would fetch the style sheets again, some by a wrong address.
        # `resultTypes`: a list of each element that passes, thousands on a page, would take twice the time.
        options = {"preload": False, "resultTypes": ["violations"]}
        if only:
            options["runOnly"] = list(only)
        options["rules"] = {rule: {"enabled": False} for rule in without}
        found = Axe().run(page, options=options).response["violations"]
        return [f"{v['id']}: {node['html'][:150]} {node['failureSummary'][:200]}" for v in found for node in v["nodes"]]

    return run


@pytest.fixture(scope="session")
def pictures():
    """The folder for screenshots."""
    folder = Path(check_site.SITE).parent / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def redraw_ms():
    """Return a function that moves a page's first slider 200 times and gives the sorted times of the redraws."""

    def run(page, positions):
        return page.evaluate(
            """positions => {
              const slider = document.querySelector('.rooflab-slider input');
              const queue = [], real = window.requestAnimationFrame, times = [];
              window.requestAnimationFrame = callback => queue.push(callback);
              for (let i = 0; i < 200; i++) {
                slider.value = i % positions;
                slider.dispatchEvent(new Event('input', {bubbles: true}));
                const begin = performance.now();
                while (queue.length) queue.shift()(begin);
                times.push(performance.now() - begin);
              }
              window.requestAnimationFrame = real;
              return times.sort((a, b) => a - b);
            }""",
            positions,
        )

    return run
