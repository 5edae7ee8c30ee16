"""The section's notebook in a real JupyterLab: Run All, drag the slider, and the Python trait has changed."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeout

ROOT = Path(__file__).parents[2]
NOTEBOOK, SECOND, FAILING = "01-roofline.ipynb", "03-fusion-levels.ipynb", "failing.ipynb"
OTHERS = (
    "02-decode-and-prefill.ipynb",
    "04-tensor-cores-fp8.ipynb",
    "05-gemm-stack.ipynb",
    "06-cuda-graph-triton-compile.ipynb",
    "07-flashattention-curve.ipynb",
    "errata.ipynb",
    "hardware.ipynb",
    "measure-your-gpu.ipynb",
    "notation.ipynb",
    "summary.ipynb",
)
PROBES = {SECOND: "print('k is', explorer.k)"} | dict.fromkeys(OTHERS, "print('all', 'cells', 'ran')")
PROBE = "print('the batch is', explorer.B, 'and', explorer.bounds()[0].roof.kind, 'binds')"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab whose folder holds the notebooks with one more cell, which prints a trait."""
    folder = tmp_path_factory.mktemp("lab")
    for name in (NOTEBOOK, SECOND, *OTHERS):
        notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        notebook.cells.append(nbformat.v4.new_code_cell(PROBES.get(name, PROBE)))
        nbformat.write(notebook, folder / name)
    cells = [nbformat.v4.new_code_cell(text) for text in ("print('No GPU here')", "1 / 0", "print('never')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata), folder / FAILING)
    settings = folder / "settings" / "@jupyterlab"
    for plugin, values in {
        "notebook-extension/tracker": {"windowingMode": "none"},  # else a cell off the screen has no output to drag
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }.items():
        (settings / plugin).parent.mkdir(parents=True, exist_ok=True)
        (settings / f"{plugin}.jupyterlab-settings").write_text(json.dumps(values))
    environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTER_CONFIG_DIR": str(folder)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    command += ["--IdentityProvider.token=", "--ServerApp.root_dir", str(folder)]
    log = (folder / "log").open("w+")
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield wait_for(folder / "log", server)
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
        server.kill()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(log, server):
    for _ in range(240):
        found = re.search(r"http://(?:localhost|127\.0\.0\.1):(\d+)/lab", log.read_text())
        if found and found[1] != "0":
            url = f"http://127.0.0.1:{found[1]}"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/api", timeout=2)
                return url
        assert server.poll() is None, log.read_text()
        time.sleep(0.25)
    raise TimeoutError(log.read_text())


def run_all(page, url, said):
    """Open a notebook, run all its cells, and wait until the last one has printed `said`."""
    page.goto(url)
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cells.first.wait_for(timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    begun = cells.first.get_by_text("GPU here").first  # what each notebook says first
    for _ in range(4):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        with contextlib.suppress(PlaywrightTimeout):
            begun.wait_for(timeout=20_000)
            break
        # A session that is idle but not yet connected drops the command without a word: give it again.
    error = tracebacks(page).first  # JupyterLab stops there
    cells.last.locator(".jp-OutputArea-output").get_by_text(said).or_(error).first.wait_for(timeout=120_000)
    assert not error.is_visible(), f"{url}: {error.inner_text()}"


def tracebacks(page):
    """Return the outputs of cells that failed: JupyterLab marks them like warnings."""
    kinds = ",".join(f"[data-mime-type='application/vnd.jupyter.{kind}']" for kind in ("stderr", "error"))
    return page.locator(kinds).filter(has_text="Traceback (most recent call last)")


def test_a_failed_cell_is_seen(lab, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_all(page, f"{lab}/lab/tree/{FAILING}?reset", "all cells ran")
    page.close()


def test_run_all_then_drag_changes_the_trait(lab, browser, pictures):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    run_all(page, f"{lab}/lab/tree/{NOTEBOOK}?reset", "the batch is 8.0 and memory binds")
    output = page.locator(".jp-CodeCell").last.locator(".jp-OutputArea-output")
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0

    slider = page.get_by_role("slider", name="batch B")
    slider.wait_for()
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 8, y, steps=6)
    page.mouse.up()
    page.locator(".rooflab-readout", has_text="right of the ridge").wait_for()
    page.locator(".rooflab").screenshot(path=pictures / "explorer-jupyterlab.png")

    page.locator(".jp-CodeCell").last.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    output.get_by_text(re.compile(r"the batch is (2048|4096)\.0 and compute binds")).wait_for(timeout=30_000)
    assert errors == []
    page.close()


def test_run_all_of_the_fusion_section_is_clean(lab, browser, pictures):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    run_all(page, f"{lab}/lab/tree/{SECOND}?reset", "k is 4.0")
    assert tracebacks(page).count() == 0
    assert page.get_by_text("No GPU here").first.is_visible()
    # A question is asked there too, and each of its choices unfolds.
    choice = page.locator("details", has=page.locator("summary", has_text="2.3 times"))
    assert not choice.get_by_text("Right.").is_visible()
    choice.locator("summary").click()
    assert choice.get_by_text("Right.").is_visible()
    choice.screenshot(path=pictures / "predict-jupyterlab.png")
    page.locator(".rooflab").screenshot(path=pictures / "fusion-jupyterlab.png")
    page.close()


@pytest.mark.parametrize("name", OTHERS)
def test_run_all_of_the_other_sections_is_clean(lab, browser, name):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    run_all(page, f"{lab}/lab/tree/{name}?reset", "all cells ran")
    assert tracebacks(page).count() == 0
    if name[:2].isdigit():  # each section has a slider page; each explorer is live: it has drawn its controls
        explorers = len(re.findall("Explorer\\(", (ROOT / "notebooks" / name).read_text(encoding="utf-8")))
        assert page.locator(".rooflab").count() == explorers > 0
    page.close()
