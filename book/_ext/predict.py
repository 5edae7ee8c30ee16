"""Sphinx extension: `{predict}` asks a question. Choices unfold one by one; with JavaScript the reader commits first.

The source is described in `tools/questions.py`, the script is `book/assets/predict.js`.
"""

import sys
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import questions  # noqa: E402


class choice(nodes.General, nodes.Element):
    """One answer with its reason, folded."""


def setup(app):
    app.add_directive("predict", Predict)
    app.add_node(choice, html=(open_choice, close_choice))
    app.add_js_file("predict.js", loading_method="defer")
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Predict(SphinxDirective):
    """A question with its choices; its anchor is `predict-NAME`."""

    required_arguments = 1
    has_content = True

    def run(self):
        try:
            asked = questions.parse(self.arguments[0], "\n".join(self.content))
        except questions.QuestionError as error:
            raise self.error(str(error)) from None
        names = predicted(self.env)
        if names.setdefault(asked.name, self.env.docname) != self.env.docname:
            raise self.error(f"predict {asked.name!r} is asked on page {names[asked.name]} already")
        box = nodes.container("", classes=["predict"], names=[f"predict-{asked.name}"])
        self.state.document.note_explicit_target(box)
        box += self.parsed(nodes.container("", classes=["predict-question"]), f"**Predict.** {asked.question}")
        for each in asked.choices:
            box += self.parsed(choice("", label=each.label, right=each.right), each.response)
        return [box]

    def parsed(self, node, text):
        """Return `node` with the nodes of the Markdown `text` in it."""
        self.state.nested_parse(
            StringList(text.split("\n"), self.state.document.current_source), self.content_offset, node
        )
        return node


def open_choice(translator, node):
    kind = "right" if node["right"] else "wrong"
    translator.body.append(
        f'<details class="predict-choice predict-{kind}"><summary>{translator.encode(node["label"])}</summary>'
    )


def close_choice(translator, node):
    translator.body.append("</details>\n")


def predicted(env):
    """Return {name of a question: its page}."""
    if not hasattr(env, "predictions"):
        env.predictions = {}
    return env.predictions


def forget(app, env, docname):
    for name in [name for name, page in predicted(env).items() if page == docname]:
        del predicted(env)[name]


def merge(app, env, docnames, other):
    for name, page in predicted(other).items():
        if page in docnames and predicted(env).setdefault(name, page) != page:
            raise ExtensionError(f"predict {name!r} is asked on pages {predicted(env)[name]} and {page}")
