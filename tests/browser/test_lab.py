"""The section's notebook in a real JupyterLab: Run All, drag the slider, and the Python trait has changed."""

import json
import re
import shutil
from pathlib import Path

import lab
import nbformat
import pytest

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
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}  # else JupyterLab asks for one
PROBES = {SECOND: "print('k is', explorer.k)"} | dict.fromkeys(OTHERS, "print('all', 'cells', 'ran')")
PROBE = "print('the batch is', explorer.B, 'and', explorer.bounds()[0].roof.kind, 'binds')"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a JupyterLab whose folder holds the notebooks with one more cell, which prints a trait."""
    folder = tmp_path_factory.mktemp("lab")
    for name in (NOTEBOOK, SECOND, *OTHERS):
        notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        notebook.cells.append(nbformat.v4.new_code_cell(PROBES.get(name, PROBE)))
        nbformat.write(notebook, folder / name)
    cells = [nbformat.v4.new_code_cell(text) for text in ("print('No GPU here')", "1 / 0", "print('never')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), folder / FAILING)
    with lab.server(folder) as url:
        yield url
    shutil.rmtree(folder, ignore_errors=True)


def run_all(page, url, said):
    """Open a notebook, run all its cells, and see that none failed and the last one has printed `said`."""
    lab.run_all(page, url)
    error = tracebacks(page).first  # JupyterLab stops there
    assert not error.is_visible(), f"{url}: {error.inner_text()}"
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    assert cells.first.get_by_text("GPU here").first.is_visible(), "what each notebook says first"
    cells.last.locator(".jp-OutputArea-output").get_by_text(said).first.wait_for()


def tracebacks(page):
    """Return the outputs of cells that failed: JupyterLab marks them like warnings."""
    kinds = ",".join(f"[data-mime-type='application/vnd.jupyter.{kind}']" for kind in ("stderr", "error"))
    return page.locator(kinds).filter(has_text="Traceback (most recent call last)")


def test_a_failed_cell_is_seen(address, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_all(page, f"{address}/lab/tree/{FAILING}?reset", "all cells ran")
    page.close()


def test_run_all_then_drag_changes_the_trait(address, browser, pictures):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    run_all(page, f"{address}/lab/tree/{NOTEBOOK}?reset", "the batch is 8.0 and memory binds")
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


def test_run_all_of_the_fusion_section_is_clean(address, browser, pictures):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    run_all(page, f"{address}/lab/tree/{SECOND}?reset", "k is 4.0")
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


def test_what_came_of_a_notebook_is_written_down(browser, tmp_path, monkeypatch):
    for name in (FAILING, "fine.ipynb"):
        text = "1 / 0" if name == FAILING else "print('fine')"
        cells = [nbformat.v4.new_code_cell(each) for each in (text, "print('after')")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), tmp_path / name)
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path)
    assert lab.main([], tmp_path / "record.json", jobs=2, limit_s=60)
    record = json.loads((tmp_path / "record.json").read_text())
    failed, fine = record["notebooks"]
    assert (failed["notebook"], failed["cells"], failed["executed"]) == (FAILING, 2, 1)
    assert failed["errors"] == ["cell 1: ZeroDivisionError: division by zero"]
    assert (fine["notebook"], fine["cells"], fine["executed"], fine["errors"]) == ("fine.ipynb", 2, 2, [])
    assert record["gpu"] and record["versions"]["jupyterlab"]


def test_a_notebook_that_takes_too_long_is_written_down_and_ended(browser, tmp_path, monkeypatch):
    cells = [nbformat.v4.new_code_cell(each) for each in ("1 + 1", "import time; time.sleep(60)", "print('after')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), tmp_path / "slow.ipynb")
    monkeypatch.setattr(lab, "NOTEBOOKS", tmp_path)
    assert lab.main([], tmp_path / "new" / "record.json", jobs=1, limit_s=8)
    (slow,) = json.loads((tmp_path / "new" / "record.json").read_text())["notebooks"]
    assert (slow["cells"], slow["executed"]) == (3, 1) and "not over after 8 s" in slow["errors"][0]


def test_what_cannot_be_run_is_refused_before_anything_runs(browser, tmp_path):
    for names, jobs, said in (
        (["none.ipynb"], 1, "No notebook none.ipynb; choose from 01-"),
        ([], 0, "give 1 or more"),
    ):
        with pytest.raises(SystemExit, match=said):
            lab.main(names, tmp_path / "record.json", jobs, 60)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", OTHERS)
def test_run_all_of_the_other_sections_is_clean(address, browser, name):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    run_all(page, f"{address}/lab/tree/{name}?reset", "all cells ran")
    assert tracebacks(page).count() == 0
    if name[:2].isdigit():  # each section has a slider page; each explorer is live: it has drawn its controls
        explorers = len(re.findall("Explorer\\(", (ROOT / "notebooks" / name).read_text(encoding="utf-8")))
        assert page.locator(".rooflab").count() == explorers > 0
    page.close()
