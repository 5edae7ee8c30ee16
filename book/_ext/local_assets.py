"""Sphinx extension: everything a page loads comes with the site, and no more of it than the pages use.

MathJax is copied from an installed package, the explorer from `rooflab.widgets`, and Font Awesome is cut down to the
icons that the built pages name.
"""

import importlib.metadata
import re
import shutil
from pathlib import Path

MATHJAX_PARTS = [
    "startup.js",
    "core.js",
    "input/tex.js",
    "input/tex/extensions",
    "output/chtml.js",
    "output/chtml/fonts",
    "a11y/assistive-mml.js",
]
# One entry of Font Awesome's tables: name:[width,height,[code points and aliases],"unicode",path or two paths],
ICON = re.compile(r'"?([a-z0-9-]+)"?:\[\d+,\d+,\[([^\]]*)\],"[0-9a-f]+",(?:"[^"]*"|\["[^"]*","[^"]*"\])\],?')
ICON_NAME = re.compile(r"\bfa-([a-z0-9-]+)")


def setup(app):
    app.connect("builder-inited", add_generated_files)
    app.connect("build-finished", trim_font_awesome)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_generated_files(app):
    """Write MathJax and the explorer into a static folder of their own, outside the sources."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir).parent / "generated_static"
    shutil.rmtree(static, ignore_errors=True)
    copy_mathjax(static / "mathjax")
    write_explorer(static / "widgets")
    app.config.html_static_path.append(str(static))
    app.add_css_file("widgets/explorer.css")
    # A classic script: a module would not load from file://.
    app.add_js_file("widgets/explorer.js", loading_method="defer")


def copy_mathjax(target):
    """Copy the parts of MathJax that _config.yml loads. (The package's folder has a dash: it can't be imported.)"""
    source = importlib.metadata.distribution("sphinx-mathjax-offline").locate_file("sphinx-mathjax-offline")
    source = Path(source) / "static" / "mathjax"
    for part in MATHJAX_PARTS:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (source / part).is_dir() else shutil.copy
        copy(source / part, target / part)


def write_explorer(target):
    from rooflab import widgets  # here, so that the error names the import when the package is not installed

    target.mkdir(parents=True)
    (target / "explorer.js").write_text(widgets.site_script(), encoding="utf-8")
    (target / "explorer.css").write_text(widgets.site_css(), encoding="utf-8")


def trim_font_awesome(app, exception):
    """Keep only the icons that a built page, or one of its scripts, names."""
    if exception or app.builder.format != "html":
        return
    site = Path(app.outdir)
    script = site / "_static" / "scripts" / "fontawesome.js"
    scripts = [file for file in site.glob("_static/**/*.js") if file != script and "mathjax" not in file.parts]
    texts = [file.read_text(encoding="utf-8") for file in [*site.glob("*.html"), *scripts]]
    used = {name for text in texts for name in ICON_NAME.findall(text)}
    script.write_text(keep_icons(script.read_text(encoding="utf-8"), used), encoding="utf-8")


def keep_icons(script, used):
    """Return the Font Awesome script without the icons that are not in `used`, by name or by alias."""

    def keep(match):
        names = {match[1], *re.findall(r'"([^"]+)"', match[2])}
        return match[0] if names & used else ""

    trimmed, found = ICON.subn(keep, script)
    if script and not found:
        raise ValueError("found no icons in fontawesome.js: the theme changed its format, so adapt ICON")
    return trimmed
