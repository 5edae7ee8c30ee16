"""Sphinx extension: a page offers its notebook, and is run again when the package that it imports changes."""

import re
import shutil
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK_FOLDERS = ["notebooks", "exercises", "solutions"]
LINKED_NOTEBOOK = re.compile(r"\.\./((?:notebooks|exercises|solutions)/[\w.-]+)$")
logger = logging.getLogger(__name__)


def setup(app):
    app.connect("source-read", depend_on_package)
    app.connect("doctree-read", link_notebooks)
    # After the theme, which makes the buttons at the default priority of 500.
    app.connect("html-page-context", offer_notebook, priority=900)
    app.connect("html-page-context", drop_wrong_roles, priority=900)
    app.connect("html-page-context", drop_widget_state, priority=900)
    app.connect("build-finished", copy_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def depend_on_package(app, docname, source):
    """Make every page with code depend on the package: Sphinx alone would only look at the page's own text."""
    if "{code-cell}" not in source[0]:
        return
    for file in sorted((ROOT / "src").rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            app.env.note_dependency(str(file))


def link_notebooks(app, doctree):
    """Let [text](../exercises/name.ipynb), which is right in the repository, lead to the copy on the site."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        match = LINKED_NOTEBOOK.match(link.get("reftarget", ""))
        if match and (ROOT / f"{match[1]}.ipynb").exists():  # else MyST warns about the link
            link.replace_self(nodes.reference("", "", *link.children, refuri=f"{match[1]}.ipynb"))


def offer_notebook(app, pagename, templatename, context, doctree):
    """Put the page's notebook first in the theme's download menu."""
    group = next((b for b in context.get("header_buttons", []) if b.get("label") == "download-buttons"), None)
    if doctree is None or group is None:
        return
    if not (ROOT / "notebooks" / f"{pagename}.ipynb").exists():
        if "{code-cell}" in Path(app.env.doc2path(pagename)).read_text(encoding="utf-8"):
            logger.warning("no notebooks/%s.ipynb for this page; run: make sync", pagename, location=pagename)
        return
    button = {
        "type": "link",
        "url": context["pathto"](f"notebooks/{pagename}.ipynb", 1),
        "text": ".ipynb",
        "icon": "fas fa-code",
        "tooltip": "Download this page as a Jupyter notebook",
        "label": "download-notebook-button",
    }
    theme = app.config.html_theme_options
    places = hosted(theme["repository_url"], theme["repository_branch"], f"notebooks/{pagename}.ipynb")
    group["buttons"][:0] = [button, *(open_button(name, address) for name, address in places.items())]


def open_button(name, address):
    """Return the entry of the download menu that opens the page's notebook on a service."""
    return {
        "type": "link",
        "url": address,
        "text": name,
        "icon": "fas fa-cloud",
        "tooltip": f"Open this page as a notebook on {name}",
        "label": f"open-{name.lower()}-button",
    }


def hosted(repository, branch, notebook):
    """Return {service: address} of what opens a notebook of the repository; empty where it is not on GitHub.

    >>> hosted("", "main", "notebooks/a.ipynb")
    {}
    """
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository)
    if not found:
        return {}
    return {
        "Colab": f"https://colab.research.google.com/github/{found[1]}/blob/{branch}/{notebook}",
        "Binder": f"https://mybinder.org/v2/gh/{found[1]}/{branch}?urlpath=lab/tree/{notebook}",
    }


def drop_wrong_roles(app, pagename, templatename, context, doctree):
    """Drop the roles of the reference list: a list may not have the children that docutils gives it."""
    body = context.get("body", "").replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    context["body"] = body.replace(' role="doc-biblioentry"', "")


def drop_widget_state(app, pagename, templatename, context, doctree):
    """Leave out the state of live widgets: only a kernel could use it, and a page has each one's static twin."""
    state = "application/vnd.jupyter.widget-state+json"
    scripts = context.get("script_files", [])
    context["script_files"] = [each for each in scripts if getattr(each, "attributes", {}).get("type") != state]


def copy_notebooks(app, exception):
    """Copy the notebooks next to the pages, in folders of the same names."""
    if exception or app.builder.format != "html":
        return
    for folder in NOTEBOOK_FOLDERS:
        target = Path(app.outdir) / folder
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for notebook in sorted((ROOT / folder).glob("*.ipynb")):
            shutil.copy(notebook, target)
