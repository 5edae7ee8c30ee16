"""The Chromium that prints the book, looks at its pages and runs its notebooks."""

import shutil

CHROMIUM_NAMES = ["chromium", "chromium-browser", "google-chrome"]
# Playwright already passes --headless. The rest keeps the browser from calling home.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


def chromium():
    """Return the path of Chromium, or None where there is none."""
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
