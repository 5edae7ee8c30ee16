"""One set of versions, a package that needs no GPU libraries, and a wheel that has its data."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
GPU_LIBRARIES = {"torch", "triton"}
IMPORT_ALL = """
import importlib, pkgutil, sys, rooflab
for module in pkgutil.walk_packages(rooflab.__path__, "rooflab."):
    if ".kernels" not in module.name and module.name != "rooflab.decoder":
        importlib.import_module(module.name)
print(*sorted({"torch", "triton"} & set(sys.modules)))
"""


def name_of(requirement):
    """Return the normalised name in a requirement line.

    >>> name_of("Jupyter_Book<2; python_version > '3'")
    'jupyter-book'
    """
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


def pins(lines):
    lines = [line.partition(";")[0] for line in lines if not line.startswith("#")]
    return {name_of(line): line.split("==")[1].strip() for line in lines if "==" in line}


CONSTRAINTS = pins((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
CONDA_PIP = next(item["pip"] for item in CONDA if isinstance(item, dict))


def direct_requirements():
    return {name_of(line) for lines in [PROJECT["dependencies"], *EXTRAS.values()] for line in lines}


def test_every_direct_requirement_is_pinned():
    assert direct_requirements() - set(CONSTRAINTS) == set()


def test_constraints_hold_plain_versions():
    """No paths, no builds of one machine such as 2.13.0+cpu."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    odd = [line for line in lines if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert odd == []


def test_conda_has_the_same_versions():
    environment = pins(CONDA_PIP)
    assert set(environment) == direct_requirements()
    assert environment.items() <= CONSTRAINTS.items()
    assert {"-c constraints.txt", "-e ."} <= set(CONDA_PIP)
    promised = {"jupyterlab", "jupytext", "numpy", "matplotlib", "ipywidgets", "torch", "triton", "sympy"}
    assert promised <= set(environment)


def test_conda_file_is_what_repo2docker_reads():
    """Binder builds from environment.yml at the root, unless a file that goes before it or hides it is there."""
    hiding = ["binder", ".binder", "Dockerfile", "default.nix", "Project.toml", "Pipfile", "environment.yaml"]
    assert [name for name in hiding if (ROOT / name).exists()] == []
    written = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert set(written) == {"name", "channels", "dependencies"}, "a prefix is a path of one machine"
    assert re.fullmatch(r"[a-z][a-z0-9-]*", written["name"]) and written["channels"] == ["conda-forge"]
    plain = [line for line in CONDA if isinstance(line, str)]
    assert {re.fullmatch(r"[a-z]+(=[\d.]+)?", line)[0] for line in plain} >= {"pip", "make"}, "a build of one platform"
    (python,) = [line.removeprefix("python=") for line in plain if line.startswith("python=")]
    assert tuple(map(int, python.split("."))) >= tuple(
        map(int, PROJECT["requires-python"].removeprefix(">=").split("."))
    )


def test_conda_leaves_out_on_other_platforms_what_pip_leaves_out():
    def markers(lines):
        return {name_of(line): line.partition(";")[2].strip() for line in lines if ";" in line}

    asked = markers(line for lines in [PROJECT["dependencies"], *EXTRAS.values()] for line in lines)
    assert asked and markers(CONDA_PIP) == asked


def test_gpu_libraries_are_in_their_extra_only():
    with_them = {extra for extra, lines in EXTRAS.items() if GPU_LIBRARIES & {name_of(line) for line in lines}}
    assert with_them == {"gpu"}
    assert not GPU_LIBRARIES & {name_of(line) for line in PROJECT["dependencies"]}


def test_the_package_imports_no_gpu_library():
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stdout + run.stderr


def test_measuring_needs_no_widgets():
    block = "import sys; sys.modules |= dict.fromkeys(('ipywidgets', 'anywidget', 'traitlets'))"
    code = f"{block}; from rooflab import cli; from rooflab.experiments import EXPERIMENTS, Campaign"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    """The files in a wheel built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return set(zipfile.ZipFile(next(folder.glob("*.whl"))).namelist())


def test_the_wheel_has_every_file_of_the_package(wheel_names):
    source = ROOT / "src"
    files = {str(f.relative_to(source)) for f in source.rglob("*") if f.is_file() and f.suffix != ".pyc"}
    assert files - wheel_names == set()
    assert any(name.startswith("rooflab/data/") for name in wheel_names)


def test_all_notebooks_ran_whole_in_jupyterlab_on_an_h200():
    """What tools/lab.py wrote there, of the commit that it names; here tests/browser/test_lab.py runs them."""
    record = json.loads((ROOT / "tests" / "data" / "jupyterlab" / "h200-sxm.json").read_text(encoding="utf-8"))
    assert "H200" in record["gpu"] and record["commit"]
    assert record["versions"]["jupyterlab"] == CONSTRAINTS["jupyterlab"]
    assert {each["notebook"] for each in record["notebooks"]} == {path.name for path in ROOT.glob("notebooks/*.ipynb")}
    for each in record["notebooks"]:
        assert each["executed"] == each["cells"] > 0 and each["errors"] == [], each
