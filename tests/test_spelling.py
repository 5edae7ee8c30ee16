"""The spelling checker sees what a reader reads, and finds what is wrong in it. `make lint` runs it on all texts."""

import check_spelling
import pytest

PAGE = """---
kernelspec: {name: pythn}
---

# A title wth a mistake

A {term}`ridgge <ridge point>` and `a_nmae`, $x_{mtah}$, {cite}`dao2022flsh`, [the lnik](../no/wrd.md).

```{dropdown} The anwser
Some colro here.
```

```{code-cell} ipython3
:tags: [hide-input]
value = pritn("a_cdoe")  # the reson
claim("This sentence has an eror in it.", value, "1 s")
```
"""


def found_in(text):
    """Return {(line, word)} of the words that are in no dictionary."""
    sentences = check_spelling.unknown_words({"page": check_spelling.markdown_prose(text)})
    return {(int(each.split(":")[1]), each.split(": ")[1]) for each in sentences}


def test_prose_is_read_and_code_is_not():
    mistakes = {(5, "wth"), (7, "ridgge"), (7, "lnik"), (9, "anwser"), (10, "colro"), (15, "reson"), (16, "eror")}
    assert found_in(PAGE) == mistakes


def test_docstrings_and_comments_are_read_and_doctests_are_not():
    code = '''def f(x):
    """Return teh sum.

    >>> f(wrnog)
    anothre
    """
    return x  # nthing more
'''
    prose = check_spelling.python_prose(code)
    assert check_spelling.unknown_words({"f.py": prose}) == ["f.py:2: teh", "f.py:7: nthing"]


@pytest.mark.parametrize("american", ["color", "optimize", "neighbor", "center", "analyzed", "quantization"])
def test_american_forms_are_found(american):
    found = check_spelling.misspellings({"page": f"A line.\nA word: {american}."})
    assert len(found) == 1 and found[0].startswith(f"page:2: {american}, better ")


@pytest.mark.parametrize("british", ["colour", "optimise", "neighbour", "centre", "analysed", "quantisation"])
def test_british_forms_are_right(british):
    text = {"page": f"A word: {british}."}
    assert check_spelling.misspellings(text) == check_spelling.unknown_words(text) == []


def test_a_known_misspelling_is_found_though_it_is_a_word():
    """The dictionary alone would let it pass."""
    assert check_spelling.misspellings({"page": "It was form teh start."}) == ["page:1: teh, better the"]


def test_without_typos_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(check_spelling.shutil, "which", lambda name, path=None: None)
    with pytest.raises(RuntimeError, match="typos is not installed; run: pip install typos"):
        check_spelling.misspellings({"page": "A word."})


def test_the_list_is_kept(monkeypatch):
    texts = {"page": "warpgroup softmax"}
    monkeypatch.setattr(check_spelling, "own_words", lambda: ["softmax", "warpgroup"])
    assert check_spelling.list_problems(texts) == []
    monkeypatch.setattr(check_spelling, "own_words", lambda: ["warpgroup", "softmax", "word", "unsued"])
    assert [each.split(": ")[-1].split(" ")[0] for each in check_spelling.list_problems(texts)] == [
        "tools/words.txt",
        "word",
        "unsued",
    ]


def test_all_prose_is_read():
    texts = check_spelling.texts()
    assert {"README.md", "CONTRIBUTING.md", "book/index.md", "src/rooflab/ledger.py"} <= set(texts)
    assert all(check_spelling.words(texts[name]) for name in texts if name.startswith(("book/0", "solutions/")))
    assert sum(len(check_spelling.words(text)) for text in texts.values()) > 40_000
