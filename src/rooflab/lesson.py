"""What pages and exercises call: claims that fail the build, source listings, and checks that give a reason.

`claim` stands behind a number in prose, `show_source` prints a function without importing its file, and
`Question`, `ArrayQuestion`, `Judged` and `TrueFalse` hold an exercise's right answer next to the known wrong ones.
"""

from __future__ import annotations

import ast
import html
import importlib.util
import inspect
import math
import numbers
import operator
import random
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import sympy

from . import units

PACKAGE = Path(__file__).parent


class _ShortError(AssertionError):
    """An error whose message is for the reader of a notebook, so IPython prints it without a traceback."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class ClaimError(_ShortError):
    """Raised when a sentence and the computed value disagree."""


class WrongAnswer(_ShortError):
    """Raised when an answer to an exercise is wrong; the message says why."""


@dataclass(frozen=True)
class Checked:
    """The discreet line that a claim or a passed check leaves in the output; `detail` shows on hover."""

    text: str
    detail: str = ""

    def __repr__(self):
        return f"✓ {self.text}"

    def _repr_html_(self):
        # Colours are inherited, so the line suits a light and a dark page.
        style = "color: inherit; opacity: 0.75; font-size: 0.85em"
        title = f' title="{html.escape(self.detail)}"' if self.detail else ""
        return f'<div class="claim" style="{style}"><span{title}>✓ {html.escape(self.text)}</span></div>'


# Claims --------------------------------------------------------------------------------------------------------------

_COMPARE = {"at most": operator.le, "at least": operator.ge, "below": operator.lt, "above": operator.gt}
_EXPECTED = re.compile(r"(?:(at most|at least|below|above) )?([-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?) ?(\D.*)?")
_PLAIN = {"": 1.0, "%": 0.01, "x": 1.0}


def claim(statement: str, value, expected: str) -> Checked:
    """Return the line `✓ checked: statement`, or raise ClaimError when `value` does not print as `expected`.

    `value` is a float in base units (FLOP, byte, s; a fraction for %) or a quantity with units.
    It holds when it rounds to `expected` at the digits that are printed: "0.40" is tighter than "0.4".
    "at most 0.5 s", "at least", "below" and "above" compare instead.
    The statement must hold `expected` word for word.

    >>> claim("The ridge of an H100 SXM in bf16 is 295 FLOP/byte.", 989.4e12 / 3.35e12, "295 FLOP/byte")
    ✓ checked: The ridge of an H100 SXM in bf16 is 295 FLOP/byte.
    >>> claim("Two copies take at most 0.5 s.", 0.6, "at most 0.5 s")
    Traceback (most recent call last):
    ...
    rooflab.lesson.ClaimError: 'Two copies take at most 0.5 s.' does not hold: computed 0.6 s, expected at most 0.5 s
    """
    match = _EXPECTED.fullmatch(expected)
    if not match:
        raise ClaimError(f"expected={expected!r} is not a number with a unit, such as '295 FLOP/byte' or 'at most 2 s'")
    # The number must not be the tail of a longer one, nor the unit the head of a longer one.
    if not re.search(rf"(?<![\w.,]){re.escape(expected)}(?![\w/%]|[.,]\d)", statement, re.IGNORECASE):
        raise ClaimError(f"claim text and number disagree: {statement!r} does not say {expected!r}")
    comparison, number, unit = match[1], Decimal(match[2].replace(",", "")), match[3] or ""
    got = _value_in(value, unit)
    if not math.isfinite(got):
        raise ClaimError(f"{statement!r} does not hold: computed {got}, expected {expected}")
    # Twelve digits: binary noise such as 2.6749999999999998 for 2.675 must not decide how a half is rounded.
    exact = Decimal(f"{got:.12g}")
    if comparison:
        holds = _COMPARE[comparison](exact, number)
    else:
        last_digit = Decimal(1).scaleb(number.as_tuple().exponent)
        holds = exact.quantize(last_digit, ROUND_HALF_UP) == number
    computed = f"computed {got:.6g} {unit}".strip()
    if not holds:
        raise ClaimError(f"{statement!r} does not hold: {computed}, expected {expected}")
    return Checked(f"checked: {statement}", computed)


def _value_in(value, unit: str) -> float:
    """Return `value` as a float in `unit`; a plain number counts as being in base units."""
    if isinstance(value, sympy.Basic) and value.has(units.Quantity):
        return units.value_in(value, unit)
    scale = _PLAIN[unit] if unit in _PLAIN else float(units.magnitude(units.parse_unit(unit), 1))
    return float(value) / scale


# Source listings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A piece of Python source; a notebook and a page show it as a highlighted code block."""

    text: str

    def __repr__(self):
        return self.text

    def _repr_markdown_(self):
        # Markdown, not HTML: JupyterLab and Sphinx then highlight it in their own light and dark colours.
        return f"```python\n{self.text}\n```"


_INSTALL = {
    "cutlass": 'pip install "nvidia-cutlass-dsl[cu13]"',
    "flashinfer": "pip install flashinfer-python",
    "deep_gemm": "git clone --recursive https://github.com/deepseek-ai/DeepGEMM; cd DeepGEMM; ./install.sh",
}


def needs(module: str, sm: int, nvcc: bool = False) -> str:
    """Return what this machine lacks to run `module`, as one sentence; an empty string if it lacks nothing.

    `sm` is the least compute capability times ten; `nvcc` says that kernels are compiled with it at the first call.

    >>> needs("no_such_library", sm=0)
    'Not run here: no_such_library is not installed (pip install no_such_library).'
    >>> needs("math", sm=0)
    ''
    """
    command = _INSTALL.get(module, f"pip install {module}")
    lacks = [] if importlib.util.find_spec(module) else [f"{module} is not installed ({command})"]
    if sm and _compute_capability() < sm:
        lacks.append(f"it takes an NVIDIA GPU of compute capability {sm / 10} or more")
    if nvcc and not shutil.which("nvcc"):
        lacks.append("it takes nvcc, CUDA's compiler")
    return f"Not run here: {'; '.join(lacks)}." if lacks else ""


def _compute_capability() -> int:
    """Return the GPU's compute capability times ten, or 0 without a GPU."""
    import torch

    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    return 10 * major + minor


def show_source(module: str, name: str) -> Source:
    """Return the source of a function or class, read from the file, so that a kernel needs no Triton to be shown.

    `module` names a module of this package ("kernels.softmax", "rooflab.kernels.softmax") or its file.

    >>> print(show_source("rooflab.lesson", "Checked._repr_html_").text.splitlines()[0])
    def _repr_html_(self):
    """
    relative = module.removesuffix(".py").removeprefix("rooflab.").replace(".", "/")
    path = PACKAGE / f"{relative}.py"
    if not path.is_file():
        beside = sorted(file.stem for file in path.parent.glob("[!_]*.py"))
        raise LookupError(f"rooflab has no module {module!r}; choose from {', '.join(beside) or 'no module there'}")
    text = path.read_text(encoding="utf-8")
    definitions = _definitions(ast.parse(text))
    if name not in definitions:
        raise LookupError(f"{path.name} defines no {name!r}; choose from {', '.join(definitions)}")
    node = definitions[name]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return Source(inspect.cleandoc("\n" + "\n".join(text.splitlines()[first - 1 : node.end_lineno])))


def _definitions(tree: ast.AST, prefix: str = "") -> dict:
    """Return {dotted name: node} of the functions and classes in `tree`, and of the methods in its classes."""
    found = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[prefix + node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= _definitions(node, f"{prefix}{node.name}.")
    return found


# Exercise checks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """One function to write: how to draw its arguments, the right formula, and wrong formulas with their reasons.

    `example` holds the exercise's own numbers and is tried first.
    `draw(pick)` returns other arguments; `pick` chooses one value of a sequence.
    `tolerance` is relative: 1e-6 is above the rounding of float32 and below the effect of any wrong formula.
    `rules` says what else a right answer keeps to: {reason: function of the answer}, tried once the values are right.

    >>> area = Question(
    ...     "area", "m2", dict(a=2, b=3), lambda pick: dict(a=pick(range(1, 99)), b=pick(range(1, 99))),
    ...     lambda a, b: a * b, {"you added the sides": lambda a, b: a + b})
    >>> area.check(lambda a, b: a * b)
    ✓ area: right for 24 inputs
    >>> area.check(lambda a, b: a + b)
    Traceback (most recent call last):
    ...
    rooflab.lesson.WrongAnswer: area: you added the sides. For a=2, b=3 you returned 5 m2.
    """

    name: str
    unit: str
    example: Mapping
    draw: Callable[[Callable], dict]
    right: Callable[..., float]
    wrong: Mapping[str, Callable[..., float]]
    tolerance: float = 1e-6
    rules: Mapping[str, Callable[[Callable], bool]] = field(default_factory=dict)

    def inputs(self, seed: int = 0) -> list[dict]:
        """Return the example and 23 drawn argument sets; the same seed draws the same."""
        pick = random.Random(seed).choice
        return [dict(self.example), *(self.draw(pick) for _ in range(23))]

    def check(self, answer: Callable[..., float], seed: int = 0) -> Checked:
        """Return a `✓` line when `answer` is right for every input, else raise WrongAnswer with the reason.

        An exception that `answer` itself raises passes through, NotImplementedError included.
        """
        if not callable(answer):
            raise WrongAnswer(f"{self.name}: pass the function itself, without calling it; got {answer!r}.")
        inputs = self.inputs(seed)
        try:
            inspect.signature(answer).bind(**inputs[0])
        except TypeError:
            raise WrongAnswer(f"{self.name}: your function must take ({', '.join(inputs[0])}).") from None
        returned = [self._read(answer(**given), given) for given in inputs]
        for given, got in zip(inputs, returned, strict=True):
            if not self._same(got, self.right(**given)):
                told = f"For {_spell(given)} you returned {self._told(got)}".strip()
                raise WrongAnswer(f"{self.name}: {self._reason(inputs, returned, given, got)}. {told}.")
        for reason, kept in self.rules.items():
            if not kept(answer):
                raise WrongAnswer(f"{self.name}: the values are right, but {reason}.")
        return Checked(f"{self.name}: right for {len(inputs)} inputs")

    def _read(self, value, given: dict) -> float:
        """Return `value` as a float, or raise WrongAnswer where it is no finite real number."""
        where = f"For {_spell(given)} it returned {value!r}."
        if value is None:
            raise WrongAnswer(f"{self.name}: your function returned None; end it with a return statement. {where}")
        if isinstance(value, (bool, str)) or not isinstance(value, numbers.Real):
            raise WrongAnswer(f"{self.name}: return one plain number, not a {type(value).__name__}. {where}")
        if not math.isfinite(value):
            raise WrongAnswer(f"{self.name}: the result must be finite. {where}")
        return float(value)

    def _same(self, got: float, want: float) -> bool:
        return math.isclose(got, want, rel_tol=self.tolerance)

    def _told(self, got: float) -> str:
        return f"{got:.6g} {self.unit}".strip()

    def _reason(self, inputs: list[dict], returned: list[float], given: dict, got: float) -> str:
        """Return the misconception that explains the values, or else by how much they are off."""
        pairs = list(zip(inputs, returned, strict=True))
        for reason, formula in self.wrong.items():
            if all(self._same(value, formula(**one)) for one, value in pairs):
                return reason
        return self._off(returned, given, got)

    def _off(self, returned: list[float], given: dict, got: float) -> str:
        """Return how far off the values are, where no misconception explains them."""
        if len(set(returned)) == 1:
            return "; and ".join(
                ["you returned the same number for every input, so use the arguments", *self._near(got)]
            )
        if (right := self.right(**given)) == 0:
            return "the result must be 0 there"
        ratio = got / right
        if ratio <= 0:
            return "the result must be positive"
        if abs(ratio - 1) < 0.01:
            return f"off by {100 * abs(ratio - 1):.2g} %; do not round"
        return f"too large by a factor {ratio:.3g}" if ratio > 1 else f"too small by a factor {1 / ratio:.3g}"

    def _near(self, constant: float) -> list[str]:
        """Return the misconception that gives about `constant` for the example, if there is one and it is not right."""
        right = self.right(**self.example)
        for reason, formula in self.wrong.items():
            value = formula(**self.example)
            # A tenth, because such constants come rounded: 0.4 for 0.43.
            if math.isclose(constant, value, rel_tol=0.1) and not math.isclose(right, value, rel_tol=0.1):
                return [reason]
        return []


@dataclass(frozen=True)
class ArrayQuestion(Question):
    """As `Question`, for a function that returns an array, or a tuple of numbers.

    `tolerance` is relative to the largest absolute value of the right array.

    >>> pick_array = lambda pick: dict(x=np.array([pick(range(1, 9)), pick(range(-9, 0))]))
    >>> double = ArrayQuestion("double", "", dict(x=np.arange(3)), pick_array, lambda x: 2 * x,
    ...     {"you squared": lambda x: x**2})
    >>> double.check(lambda x: x + x)
    ✓ double: right for 24 inputs
    >>> double.check(lambda x: x**2)
    Traceback (most recent call last):
    ...
    rooflab.lesson.WrongAnswer: double: you squared. For x=array(3,) you returned (0, 1, 4).
    """

    def _read(self, value, given: dict) -> np.ndarray:
        """Return `value` as an array of the right shape, or raise WrongAnswer."""
        where = f"For {_spell(given)} it returned {value!r}."
        if value is None:
            raise WrongAnswer(f"{self.name}: your function returned None; end it with a return statement. {where}")
        want = np.asarray(self.right(**given)).shape
        try:
            got = np.asarray(value)
        except ValueError:  # rows of different lengths
            got = np.asarray(None)
        if not (np.issubdtype(got.dtype, np.floating) or np.issubdtype(got.dtype, np.integer)):
            raise WrongAnswer(f"{self.name}: return real numbers, not a {type(value).__name__} of {got.dtype}.")
        if got.shape != want:
            told = f"For {_spell(given)} it has shape {got.shape}"
            raise WrongAnswer(f"{self.name}: the result must have shape {want}. {told}.")
        return got

    def _same(self, got, want) -> bool:
        got, want = np.asarray(got, dtype=float), np.asarray(want, dtype=float)
        finite = want[np.isfinite(want)]
        room = self.tolerance * np.abs(finite).max(initial=0.0)
        return got.shape == want.shape and np.allclose(got, want, rtol=0, atol=room, equal_nan=True)

    def _told(self, got) -> str:
        if got.size <= 4:
            return "(" + ", ".join(f"{value:.6g}" for value in got.flat) + ")"
        return f"{_brief(got)} from {got.min():.6g} to {got.max():.6g}"

    def _off(self, returned, given: dict, got) -> str:
        if not np.isfinite(got).all():
            return "the result must be finite"
        want = np.asarray(self.right(**given), dtype=float)
        error = np.abs(got - want).max() / np.abs(want).max()
        wrong = int((np.abs(got - want) > self.tolerance * np.abs(want).max()).sum())
        return f"{wrong} of {got.size} values are off, by up to {error:.2g} of the largest right value"


def _brief(value):
    """Return an argument as a message shows it: short, whatever its size."""
    if isinstance(value, np.ndarray):
        return f"array{value.shape}".replace(" ", "")
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple, Mapping)) and len(repr(value)) > 60:
        return f"{type(value).__name__} of {len(value)}"
    return value


def _spell(given: dict) -> str:
    """Return `L=4096, causal=False` for a set of arguments."""
    return ", ".join(f"{name}={_brief(value)}" for name, value in given.items())


@dataclass(frozen=True)
class Judged:
    """An answer of any other form: `problems(answer)` calls the function and yields what is wrong, gravest first.

    >>> even = Judged("even", (), lambda answer: [] if answer() % 2 == 0 else [f"{answer()} is odd"])
    >>> even.check(lambda: 3)
    Traceback (most recent call last):
    ...
    rooflab.lesson.WrongAnswer: even: 3 is odd.
    """

    name: str
    arguments: tuple[str, ...]
    problems: Callable[[Callable], Iterable[str]]

    def check(self, answer: Callable) -> Checked:
        """Return a `✓` line when `problems` finds none, else raise WrongAnswer with the first."""
        if not callable(answer):
            raise WrongAnswer(f"{self.name}: pass the function itself, without calling it; got {answer!r}.")
        try:
            inspect.signature(answer).bind(**dict.fromkeys(self.arguments))
        except TypeError:
            raise WrongAnswer(f"{self.name}: your function must take ({', '.join(self.arguments)}).") from None
        for problem in self.problems(answer):
            raise WrongAnswer(f"{self.name}: {problem}.")
        return Checked(f"{self.name}: right")


@dataclass(frozen=True)
class TrueFalse:
    """Statements to judge: {letter: (statement, whether it is true, the reason)}.

    >>> sky = TrueFalse("sky", {"a": ("The sky is green.", False, "it scatters blue light")})
    >>> sky.check(lambda: {"a": True})
    Traceback (most recent call last):
    ...
    rooflab.lesson.WrongAnswer: sky: (a) is false: it scatters blue light.
    """

    name: str
    statements: Mapping[str, tuple[str, bool, str]]

    def __repr__(self):
        return "\n".join(f"({letter}) {text}" for letter, (text, _, _) in self.statements.items())

    def _repr_markdown_(self):
        return "\n".join(f"- **({letter})** {text}" for letter, (text, _, _) in self.statements.items())

    def check(self, answer: Callable[[], Mapping[str, bool]]) -> Checked:
        """Return a `✓` line when every statement is judged rightly, else raise WrongAnswer on the first that is not."""
        given = answer() if callable(answer) else answer
        letters = ", ".join(self.statements)
        if not isinstance(given, Mapping) or set(given) != set(self.statements):
            raise WrongAnswer(f"{self.name}: return a dict with the keys {letters}; got {given!r}.")
        for letter, (_, truth, reason) in self.statements.items():
            if not isinstance(given[letter], bool):
                raise WrongAnswer(f"{self.name}: ({letter}) must be True or False; got {given[letter]!r}.")
            if given[letter] != truth:
                raise WrongAnswer(f"{self.name}: ({letter}) is {str(truth).lower()}: {reason}.")
        return Checked(f"{self.name}: all {len(self.statements)} statements judged rightly")
