"""Run all cells of the book's notebooks in JupyterLab, in a real browser, and write down what came of each.

    python tools/lab.py [--out FILE] [--jobs N] [--limit SECONDS] [NAME ...]

On a GPU the notebooks measure; else they replay the book's records. Several at once share the machine and its GPU.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

import jupyterlab
from chromium import CHROMIUM_ARGS, chromium
from playwright.sync_api import sync_playwright

from rooflab import provenance

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # else a cell off the screen is not on the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
PROMPTS = "nodes => nodes.map(node => node.textContent.replace(/[\\s\\u200b]/g, ''))"


@contextlib.contextmanager
def server(folder):
    """Yield the address of a JupyterLab that shows `folder`; it ends with its kernels."""
    settings = folder / "settings" / "@jupyterlab"
    for plugin, values in SETTINGS.items():
        (settings / plugin).parent.mkdir(parents=True, exist_ok=True)
        (settings / f"{plugin}.jupyterlab-settings").write_text(json.dumps(values), encoding="utf-8")
    environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTER_CONFIG_DIR": str(folder)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    command += ["--IdentityProvider.token=", "--ServerApp.root_dir", str(folder)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            yield _address(folder / "log", process)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _address(log, process):
    for _ in range(240):
        said = log.read_text(encoding="utf-8")
        found = re.search(r"http://(?:localhost|127\.0\.0\.1):(\d+)/lab", said)
        if found and found[1] != "0":
            url = f"http://127.0.0.1:{found[1]}"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/api", timeout=2)
                return url
        if process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended: {said}")
        time.sleep(0.25)
    raise TimeoutError(f"JupyterLab did not begin: {said}")


def run_all(page, url, limit_s=120):
    """Open a notebook, run all its cells, and wait until none of them waits or runs; raise TimeoutError after that."""
    page.goto(url, timeout=90_000)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=90_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=90_000)
    prompts = page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-prompt")
    end = time.monotonic() + limit_s

    def begun():
        return any(re.search(r"[\d*]", text) for text in prompts.evaluate_all(PROMPTS))

    def over():
        idle = page.get_by_text("Python 3 (ipykernel) | Idle").count() > 0
        return idle and not any("*" in text for text in prompts.evaluate_all(PROMPTS))

    for _ in range(4):
        choose(page, "Run", "Run All Cells")
        # A session that is idle but not yet connected drops the command without a word: give it again.
        if _stays(begun, 1, min(end, time.monotonic() + 20)):
            break
    # Between two cells the kernel is idle for a moment.
    if not _stays(over, 4, end):
        raise TimeoutError(f"{url}: not over after {limit_s} s")


def choose(page, menu, entry):
    """Give a command of JupyterLab's menus."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_text(entry, exact=True).click()


def _stays(true, times, end):
    """Return True once `true` was so a number of times in a row, half a second apart, and False at `end`."""
    seen = 0
    while time.monotonic() < end:
        seen = seen + 1 if true() else 0
        if seen == times:
            return True
        time.sleep(0.5)
    return False


def save(page):
    """Save the notebook that is open."""
    choose(page, "File", "Save Notebook")
    page.wait_for_timeout(1500)


def shut_down(page):
    """End the kernel of the notebook that is open, so that it holds no memory of the GPU."""
    choose(page, "Kernel", "Shut Down Kernel")
    page.get_by_text("No Kernel").first.wait_for(timeout=20_000)


def outcome(path):
    """Return how many code cells a saved notebook has, how many of them ran, and the errors among their outputs."""
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    outputs = [(number, output) for number, cell in enumerate(code, 1) for output in cell["outputs"]]
    return {
        "cells": len(code),
        "executed": sum(cell["execution_count"] is not None for cell in code),
        "errors": [
            f"cell {number}: {output['ename']}: {output['evalue']}"
            for number, output in outputs
            if output["output_type"] == "error"
        ],
    }


def run(name, url, folder, limit_s):
    """Run a notebook in a browser of its own, and return what came of it; trouble is written down, not raised."""
    begun, trouble, found = time.monotonic(), [], {}
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.on("pageerror", lambda error: trouble.append(f"page: {error}"))
            try:
                run_all(page, f"{url}/lab/tree/{name}?reset", limit_s)
            except Exception as error:  # what ran counts, and the kernel must not go on beside the next notebook
                trouble.append(_said(error))
            save(page)
            found = outcome(folder / name)
            shut_down(page)
    except Exception as error:
        trouble.append(_said(error))
    found = {"notebook": name, "cells": 0, "executed": 0, "errors": []} | found
    return found | {"errors": found["errors"] + trouble, "time_s": round(time.monotonic() - begun, 1)}


def _said(error):
    return f"{type(error).__name__}: {error}"[:500]


def keep(out, record):
    """Write a record, whole or not at all."""
    new = out.with_name(f".{out.name}.new")
    new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    new.replace(out)


def main(names, out, jobs, limit_s):
    if chromium() is None:
        sys.exit("No Chromium; get it with: apt-get install chromium libatomic1")
    known = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
    names = names or known
    if unknown := set(names) - set(known):
        sys.exit(f"No notebook {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    if jobs < 1:
        sys.exit(f"--jobs is {jobs}; give 1 or more")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
    setting = {
        "gpu": provenance.gpu_here(),
        "versions": provenance.versions() | {"jupyterlab": jupyterlab.__version__},
        "commit": provenance.commit(),
        "run": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "at_once": jobs,
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folder = Path(folder)
        for name in names:
            shutil.copy(NOTEBOOKS / name, folder / name)
        done = []
        with server(folder) as url, ThreadPoolExecutor(jobs) as pool:
            for running in as_completed([pool.submit(run, name, url, folder, limit_s) for name in names]):
                found = running.result()
                done = sorted([*done, found], key=lambda each: each["notebook"])
                print(
                    f"{found['notebook']}: {found['executed']} of {found['cells']} cells,",
                    *found["errors"] or ["clean"],
                )
                if out:
                    keep(out, setting | {"notebooks": done})
    return any(found["errors"] or found["executed"] != found["cells"] for found in done)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS")
    chosen = parser.parse_args()
    sys.exit(main(chosen.names, chosen.out, chosen.jobs, chosen.limit))
