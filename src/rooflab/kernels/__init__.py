"""Triton kernels, one module per operation: first `reference`, then the versions in the order the book meets them.

This module imports neither torch nor Triton, so that a record can be checked against its kernel without them.
"""

from __future__ import annotations

import ast
import hashlib
import io
import math
import tokenize
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


class KernelError(ValueError):
    """Raised when a kernel's result is wrong, or when a kernel cannot take what it is given."""


# Correctness ---------------------------------------------------------------------------------------------------------

# Unit roundoff: one rounding to nearest changes a number by at most this share of it.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Below the normal range a result may be off by half a step (fp16) or flushed to zero (fp32 and bf16 on a GPU).
UNDERFLOW = {"float64": 2.0**-1022, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-25}


@dataclass(frozen=True)
class Check:
    """A passed comparison: error and tolerance where their quotient is largest, both in units of the result."""

    max_error: float
    tolerance: float


def check(actual, reference64, *, dtype, length: int, scale: float | None = None, accumulate="float32") -> Check:
    """Return how well `actual` agrees with a float64 reference, or raise KernelError naming the worst element.

    Two kinds of rounding separate a right result from the reference r:

    - the result is rounded once to `dtype`: at most u(dtype) |r|, where u is the unit roundoff;
    - `length` operations each round an intermediate of size `scale` to the dtype `accumulate`. The roundings are
      independent and of either sign, so their sum grows as sqrt(length) u(accumulate) scale, not as length. Four times
      that leaves room for the largest of many elements and for a GPU's approximate exp, division and square root.

    tolerance = u(dtype) |r| + 4 sqrt(length) u(accumulate) scale + the smallest normal number

    `scale` is the largest |r| if not given; give it where intermediates are larger than results, as before a
    cancellation. A version that stores intermediates in 16 bits says so with `accumulate`; one that does not say so and
    yet computes in 16 bits fails, because two such roundings exceed the first term.
    NaN and infinity must stand exactly where the reference, rounded to `dtype`, has them.

    >>> import torch
    >>> third = torch.tensor([1 / 3], dtype=torch.float64)
    >>> check(third.float(), third, dtype="fp32", length=1).max_error < 1e-8
    True
    """
    name, kept = _dtype_name(dtype), _dtype_name(accumulate)
    if _dtype_name(actual.dtype) != name:
        raise KernelError(f"the result is {_dtype_name(actual.dtype)}, not {name}")
    if actual.shape != reference64.shape:
        raise KernelError(f"the result has shape {tuple(actual.shape)}, the reference {tuple(reference64.shape)}")
    if _dtype_name(reference64.dtype) != "float64":
        raise KernelError(f"the reference is {_dtype_name(reference64.dtype)}: compute it in float64")
    # A reference beyond the range of `dtype` becomes infinite, and so must the result.
    rounded = reference64.to(actual.dtype)
    finite = rounded.isfinite()
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    wrong = (~same & ~finite) | (finite & ~actual.isfinite())
    if wrong.any():
        raise KernelError(_worst(wrong.double(), actual, reference64, "not finite, or not where it must be"))
    if not finite.any():
        return Check(0.0, 0.0)
    reference = reference64.where(finite, 0)
    error = (actual.where(finite, 0).double() - reference).abs()
    size = reference.abs().max().item() if scale is None else float(scale)
    accumulated = 4 * math.sqrt(length) * ROUNDOFF[kept] * size + UNDERFLOW[name]
    tolerance = reference.abs() * ROUNDOFF[name] + accumulated
    excess = error / tolerance
    worst = excess.argmax().item()
    result = Check(error.flatten()[worst].item(), tolerance.flatten()[worst].item())
    if excess.flatten()[worst].item() > 1:
        reason = f"error {result.max_error:.3g} above the tolerance {result.tolerance:.3g} of {name}, length {length}"
        reason += f"; {int((excess > 1).sum())} of {error.numel()} elements are wrong"
        raise KernelError(_worst(excess, actual, reference64, reason))
    return result


def _worst(badness, actual, reference64, reason: str) -> str:
    position = badness.argmax().item()
    index = []
    for extent in reversed(badness.shape):
        position, last = divmod(position, extent)
        index.insert(0, last)
    where = tuple(index)
    got, expected = actual[where].item(), reference64[where].item()
    return f"wrong result at {list(where)}: {got:.6g}, expected {expected:.6g}: {reason}"


def _dtype_name(dtype) -> str:
    """Return torch's name of a dtype given as torch.bfloat16, "bfloat16" or the book's "bf16".

    >>> _dtype_name("bf16")
    'bfloat16'
    """
    name = str(dtype).removeprefix("torch.")
    name = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(name, name)
    if name not in ROUNDOFF:
        raise KernelError(f"no tolerance for dtype {name}; use one of {', '.join(ROUNDOFF)}")
    return name


# Fingerprint ---------------------------------------------------------------------------------------------------------


def fingerprint(module_name: str) -> str:
    """Return the SHA-256 of a kernel module's code, which a record keeps to tell that its kernel has changed.

    Comments, docstrings and blank lines do not count; other kernel modules that it imports do.

    >>> len(fingerprint("softmax")), fingerprint("softmax") == fingerprint("attention")
    (64, False)
    """
    digest = hashlib.sha256()
    for name in sorted(_with_imports(module_name, set())):
        digest.update(f"{name}\n".encode())
        digest.update("\n".join(code_tokens(_source(name))).encode())
    return digest.hexdigest()


def _source(name: str) -> str:
    path = FOLDER / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("[!_]*.py")))
        raise KernelError(f"no kernel module {name!r}; choose from {known}")
    return path.read_text(encoding="utf-8")


def _with_imports(name: str, seen: set[str]) -> set[str]:
    """Add `name` and the kernel modules that it uses to `seen`; the shared `_triton` holds no kernel."""
    seen.add(name)
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for other in [node.module] if node.module else [alias.name for alias in node.names]:
                if other not in seen and not other.startswith("_") and (FOLDER / f"{other}.py").is_file():
                    _with_imports(other, seen)
    return seen


def code_tokens(source: str) -> list[str]:
    """Return the tokens of Python code without comments, docstrings and blank lines, equal in every Python version.

    >>> code_tokens("def f(x):  # why\\n    'Say what.'\\n\\n    return f'{x}'")[5:]
    [':', 'NEWLINE', 'INDENT', 'return', "f'{x}'", 'NEWLINE', 'DEDENT']
    """
    lines = source.splitlines(keepends=True)
    docstrings = [
        ((node.body[0].lineno, node.body[0].col_offset), (node.body[0].end_lineno, node.body[0].end_col_offset))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and ast.get_docstring(node, clean=False) is not None
    ]
    tokens: list[str] = []
    f_string_starts: list[tuple[int, int]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind in ("FSTRING_START", "TSTRING_START"):
            f_string_starts.append(token.start)
        elif kind in ("FSTRING_END", "TSTRING_END"):
            # One token, as before Python 3.12.
            start = f_string_starts.pop()
            if not f_string_starts:
                tokens.append(_between(lines, start, token.end))
        elif f_string_starts or kind in ("COMMENT", "NL", "ENDMARKER"):
            continue
        elif kind in ("INDENT", "DEDENT", "NEWLINE"):
            # The line break after a docstring goes with it.
            if kind != "NEWLINE" or (tokens and tokens[-1] not in ("NEWLINE", "INDENT", "DEDENT")):
                tokens.append(kind)
        elif not any(start <= token.start < end for start, end in docstrings):
            tokens.append(token.string)
    return tokens


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    (first, left), (last, right) = start, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])
