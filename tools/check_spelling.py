"""Check the spelling of all prose: pages, texts, exercises, and the docstrings, comments and sentences of the code.

    python tools/check_spelling.py

The book writes British English. A word must be in Hunspell's dictionary or in tools/words.txt, and `typos` must find
neither a known misspelling nor an American form.
"""

import ast
import io
import json
import re
import shutil
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = Path(__file__).parent / "words.txt"
TEXTS = ["*.md", "book/*.md", "solutions/*.md", "src/**/*.py", "tools/*.py", "book/_ext/*.py", "tests/**/*.py"]

FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
FENCE = re.compile(r"^(`{3,})(.*)$")
# What Markdown shows in another way than as words: code, formulas, addresses, keys, HTML.
NO_PROSE = re.compile(
    r"""`+[^`]+`+                                     # code, a key
    | \$\$.*?\$\$ | \$[^$\n]+\$                       # a formula
    | (?<=\])\([^()\s]*\) | <[^<>\n]*> | https?://\S+ # an address
    | ^\([\w-]+\)=$ | ^:\w+:.*$                       # a label, an option
    | \{[\w-]+\}                                      # a role
    | &\w+;""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
TERM = re.compile(r"\{term\}`([^`<]+)(<[^`>]*>)?`")
DOCTEST = re.compile(r"^[ \t]*>>>.*?(?=\n[ \t]*\n|\Z)", re.DOTALL | re.MULTILINE)
# Not words: names with a digit, an underscore or a dot inside, options, and what has letters of another script.
TOKEN = re.compile(r"(?<![\w@.])--?[a-z][\w-]*|[\w.]*[\w'’]+")
WORD = re.compile(r"[A-Za-zÀ-ÿ]+(?:['’][A-Za-z]+)?")
NO_WORD = re.compile(r"[A-Z]+s?|..?|[A-Z]\w+(?:Error|Interrupt)")  # abbreviations, units, exceptions


def blank(match):
    """Return white space with the line breaks of `match`, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", match[0])


def prose(text):
    """Return Markdown with all that is not prose made blank; of {term}`text <entry>` the text is prose."""
    return NO_PROSE.sub(blank, TERM.sub(r"\1", text))


def markdown_prose(text):
    """Return the prose of a MyST page, with the comments and sentences of its code cells, line by line as there."""
    text = FRONT_MATTER.sub(blank, text)
    lines, code, fence, is_python = [], [], "", False
    for line in text.split("\n"):
        match = FENCE.match(line)
        if fence and not line.startswith(fence):
            code.append(line)
            lines.append("")
        elif fence:  # the end of a listing
            if is_python:
                lines[len(lines) - len(code) :] = python_prose("\n".join(code)).split("\n")
            fence = ""
            lines.append("")
        elif match and is_listing(match[2]):
            fence, code, is_python = match[1], [], match[2].startswith(("{code-cell}", "python"))
            lines.append("")
        else:
            lines.append(match[2].partition("}")[2] if match else line)
    return prose("\n".join(lines))


def is_listing(info):
    """Tell a block of code from a directive that holds prose, by what follows its fence."""
    return bool(info) and not info.startswith("{") or info.startswith(("{code", "{math", "{bibliography"))


def python_prose(code, sentences=True):
    """Return the docstrings, comments and, with `sentences`, other strings that read as such, each on its line."""
    code = re.sub(r"^(?:[%!]|:\w+:).*$", "", code, flags=re.MULTILINE)
    found = [""] * (code.count("\n") + 1)
    try:
        tokens = [
            (token.start[0], token.string.lstrip("# "))
            for token in tokenize.generate_tokens(io.StringIO(code).readline)
            if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|fmt:|type:|ruff:)", token.string)
        ]
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, tokenize.TokenError):  # a stub or a shell command
        return "\n".join(found)
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    kept = [node for node in strings if id(node) in docs or (sentences and is_sentence(node.value))]
    for first, text in tokens + [(node.lineno, node.value) for node in kept]:
        for offset, line in enumerate(prose(DOCTEST.sub(blank, text)).split("\n")):
            found[min(first - 1 + offset, len(found) - 1)] += f" {line}"
    return "\n".join(found)


def is_sentence(text):
    """Tell words for a reader from names, formats, patterns and code."""
    plain = re.findall(r"(?<!\S)[A-Za-z]+[,.:;]?(?!\S)", text)
    return len(plain) >= 3 and not re.search(r"[{}\\<>=;]|\w\(|::", text[:400])


def read(file):
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return python_prose(text, sentences="tests" not in file.parts)  # tests misspell on purpose
    return markdown_prose(text)


def files():
    """Return the files with prose."""
    skipped = {"LICENSE.md"}
    found = {file for pattern in TEXTS for file in ROOT.glob(pattern) if file.name not in skipped}
    return sorted(file for file in found if not {"wrong", ".ipynb_checkpoints"} & set(file.parts))


def words(text):
    """Return (line, word) of all words of prose to look up; not names with a digit or a dot inside, nor NO_WORD.

    >>> words("An SM's warps, H100s and torch.compile don't.")
    [(1, 'warps'), (1, 'and'), (1, "don't")]
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        for token in TOKEN.findall(line):
            word = re.sub(r"['’]s?$", "", token.strip(".'’")).replace("’", "'")
            if WORD.fullmatch(word) and not NO_WORD.fullmatch(word):
                found.append((number, word))
    return found


@cache
def dictionary():
    import spylls.hunspell
    from spylls.hunspell import Dictionary

    return Dictionary.from_files(str(Path(spylls.hunspell.__file__).parent / "data" / "en" / "en_US"))


@cache
def in_dictionary(word):
    """Tell whether the dictionary has a word. It is American, so a word in -ise is looked up in -ize, too."""
    american = re.sub(r"is(?=(?:e|ed|er|ers|es|ing|ations?)$)", "iz", word)
    return dictionary().lookup(word) or (american != word and dictionary().lookup(american))


def own_words():
    """Return the words of tools/words.txt, in its order."""
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def is_known(word, own):
    """Tell whether a word, or its form without a capital, is in the dictionary or in the set `own`."""
    forms = {word, word[0].lower() + word[1:]}
    return bool(forms & own) or any(map(in_dictionary, forms))


def unknown_words(texts):
    """Return a sentence for each word of {name: prose} that neither list knows."""
    own = set(own_words())
    return [
        f"{name}:{line}: {word}"
        for name, text in texts.items()
        for line, word in words(text)
        if not is_known(word, own)
    ]


def misspellings(texts):
    """Return a sentence for each misspelling and each American form that `typos` finds in {name: prose}."""
    program = shutil.which("typos", path=str(Path(sys.executable).parent)) or shutil.which("typos")
    if program is None:
        raise RuntimeError("typos is not installed; run: pip install typos")
    own = {word.lower() for word in own_words()}
    places = [(name, line, word) for name, text in texts.items() for line, word in words(text)]
    joined = "\n".join(word for _, _, word in places)
    command = [program, "--isolated", "--locale", "en-gb", "--format", "json", "-"]
    done = subprocess.run(command, input=joined, capture_output=True, text=True, encoding="utf-8")
    if done.returncode not in (0, 2):
        raise RuntimeError(f"typos failed: {done.stderr}")
    found = [each for each in map(json.loads, done.stdout.splitlines()) if each["type"] == "typo"]
    return [
        "{}:{}: {}, better {}".format(*places[each["line_num"] - 1], " or ".join(each["corrections"]))
        for each in found
        if places[each["line_num"] - 1][2].lower() not in own
    ]


def list_problems(texts):
    """Return what is wrong with tools/words.txt: its order, a word twice, one that no text needs any more."""
    own = own_words()
    ordered = sorted(set(own), key=lambda word: (word.casefold(), word))
    found = [] if own == ordered else ["tools/words.txt is not in alphabetical order, or has a word twice"]
    used = {form for text in texts.values() for _, word in words(text) for form in (word, word[0].lower() + word[1:])}
    return found + [f"tools/words.txt: {word} is not used" for word in own if word not in used or in_dictionary(word)]


def texts():
    """Return {name of a file: its prose}."""
    return {str(file.relative_to(ROOT)): read(file) for file in files()}


def main():
    found = texts()
    problems = unknown_words(found) + misspellings(found) + list_problems(found)
    print("\n".join(problems) or "no problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
