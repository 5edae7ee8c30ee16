"""Sphinx extension: a line does not end between a number and its unit, and printed columns stay columns."""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

NUMBER_AND_UNIT = re.compile(r"(?<![\w.])(\d(?:[\d.,]*\d)?) ([^\W\d_]+(?:[/·][^\W\d_]+)*|%)")
NO_BREAK_SPACE = "\u00a0"
# Spaces within a line, as between columns; those at its beginning indent it.
COLUMNS = re.compile(r"\S {2,}\S")


def setup(app):
    app.add_post_transform(KeepTogether)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class KeepTogether(SphinxPostTransform):
    """Runs last, on what the page shows; search splits words at either kind of space."""

    default_priority = 900
    formats = ("html",)

    def run(self):
        for text in list(self.document.findall(nodes.Text)):
            if not is_verbatim(text) and (joined := join(text)) != text:
                text.parent.replace(text, nodes.Text(joined))
        for printed in self.document.findall(nodes.literal_block):
            if "stream" in printed["classes"] and COLUMNS.search(printed.astext()):
                printed["classes"].append("rooflab-columns")


def is_verbatim(node):
    """Tell whether a text is code, a formula or another language's source, which a no-break space would change."""
    while node := node.parent:
        if isinstance(node, (nodes.literal, nodes.math, nodes.FixedTextElement)):
            return True
    return False


def join(text):
    """Return the text with a no-break space between each number and its unit.

    >>> join("at 17 TFLOP/s, 5 % of the peak, in 3 steps")
    'at 17\\xa0TFLOP/s, 5\\xa0% of the peak, in 3 steps'
    """
    return NUMBER_AND_UNIT.sub(
        lambda found: f"{found[1]}{NO_BREAK_SPACE}{found[2]}" if is_unit(found[2]) else found[0], text
    )


def is_unit(word):
    from rooflab import units  # here, so that the error names the import when the package is not installed

    try:
        units.parse_unit(word)
    except units.UnitError:
        return word == "%"
    return True
