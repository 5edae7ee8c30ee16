"""The questions that a page asks before it answers them, as they stand in its source.

    ```{predict} gemv-share
    The question, in as much Markdown as it needs.

    - ( ) 30 %
      What one believes who chooses this, and why it is wrong.
    - (x) 0.3 %
      Why this is right.
    ```

The page and the notebook are both made from this: `book/_ext/predict.py` and `plain_markdown.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{predict\}(?P<argument>.*)\n(?P<body>(?s:.*?))^(?P=fence) *$", re.MULTILINE
)
_CHOICE = re.compile(r"- \((?P<mark>[x ])\) (?P<label>.+)")


class QuestionError(ValueError):
    """Raised when a question's source cannot be asked; the message says what is wrong with it."""


@dataclass(frozen=True)
class Choice:
    """One answer to choose: its label, whether it is right, and the reason in Markdown."""

    label: str
    right: bool
    reason: str

    @property
    def response(self) -> str:
        """What the reader is told who chose it, in Markdown."""
        return f"**{'Right.' if self.right else 'Not so.'}** {self.reason}"


@dataclass(frozen=True)
class Prediction:
    """A question with its name, unique in the book, its Markdown, and its choices."""

    name: str
    question: str
    choices: tuple[Choice, ...]


def parse(name: str, body: str) -> Prediction:
    """Return the question in a directive's body, or raise QuestionError.

    >>> parse("sum", "What is 1 + 1?\\n\\n- ( ) 3\\n  No.\\n- (x) 2\\n  By definition.").choices[1]
    Choice(label='2', right=True, reason='By definition.')
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise QuestionError(f"predict {name!r}: name the question in small letters, digits and dashes")
    question, found = [], []
    for line in body.strip("\n").split("\n"):
        if opening := _CHOICE.fullmatch(line.rstrip()):
            found.append((opening["label"].strip(), opening["mark"] == "x", []))
        elif not found:
            question.append(line)
        elif line.startswith("  ") or not line.strip():
            found[-1][2].append(line[2:])
        else:
            raise QuestionError(f"predict {name!r}: indent {line!r} by two spaces, or begin a choice with '- ( ) '")
    choices = tuple(Choice(label, right, "\n".join(reason).strip()) for label, right, reason in found)
    _complain(name, "\n".join(question).strip(), choices)
    return Prediction(name, "\n".join(question).strip(), choices)


def _complain(name: str, question: str, choices: tuple[Choice, ...]) -> None:
    labels = [choice.label for choice in choices]
    if not question:
        raise QuestionError(f"predict {name!r} asks nothing")
    if len(choices) < 2 or sum(choice.right for choice in choices) != 1:
        raise QuestionError(f"predict {name!r} needs two choices or more, exactly one of them with (x)")
    if len(set(labels)) < len(labels):
        raise QuestionError(f"predict {name!r} offers the same choice twice")
    for choice in choices:
        # The label is a <summary> in a notebook, where Markdown is not read.
        if marks := re.search(r"[`*_$<>{}\[\]]", choice.label):
            raise QuestionError(f"predict {name!r}: {choice.label!r} holds {marks[0]!r}; a choice is plain text")
        if not choice.reason:
            raise QuestionError(f"predict {name!r}: say why {choice.label!r} is right or wrong")


def predictions(text: str) -> list[Prediction]:
    """Return the questions in a page's source, in the order of the page."""
    return [parse(block["argument"].strip(), block["body"]) for block in _BLOCK.finditer(text)]
