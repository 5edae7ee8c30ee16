"""The package imports only downwards: from lower layers, and inside a layer from the names to the left."""

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

import rooflab

LAYERS = [
    ["units", "ledger", "numerics", "timing", "kernels", "provenance"],
    ["hardware", "models", "step", "decoder", "records"],
    ["roofline"],
    ["figures", "widgets", "experiments", "lesson", "exercises"],
    ["report", "cli"],
]
ORDER = [name for layer in LAYERS for name in layer]
PACKAGE = Path(rooflab.__file__).parent
# __init__.py of the package itself may offer names from any layer.
FILES = [f for f in sorted(PACKAGE.rglob("*.py")) if f != PACKAGE / "__init__.py" and "data" not in f.parts]


def module_of(file):
    """Return the part of the package that a file belongs to: `widgets` for widgets/scenario.py."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(source, package):
    """Return the parts of rooflab that `source` imports, wherever in the file it does.

    >>> sorted(imported_modules("from . import units\\nimport rooflab.ledger", "rooflab"))
    ['ledger', 'units']
    >>> sorted(imported_modules("from ..roofline import Roofline\\nfrom .scenario import Dot", "rooflab.widgets"))
    ['roofline', 'widgets']
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("rooflab.")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_downwards(file):
    module = module_of(file)
    assert module in ORDER, f"add {module} to LAYERS in {__file__}"
    package = ".".join(["rooflab", *file.relative_to(PACKAGE).parts[:-1]])
    imported = imported_modules(file.read_text(encoding="utf-8"), package) - {module}
    unknown = {name for name in imported if name not in ORDER and (PACKAGE / name).exists()}
    assert not unknown, f"add {unknown} to LAYERS in {__file__}"
    upward = {name for name in imported if name in ORDER and ORDER.index(name) > ORDER.index(module)}
    assert not upward, f"{module} may not import {upward}: only what stands before it in {ORDER}"
