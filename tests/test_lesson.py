"""Claims hold at the printed digits, listings need no import, and checks refuse what is no answer."""

import math
import sys

import numpy as np
import pytest

from rooflab import lesson, units
from rooflab.lesson import ArrayQuestion, ClaimError, Judged, Question, TrueFalse, WrongAnswer, claim, show_source


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (294.5, "295 FLOP/byte"),
        (295.4999, "295 FLOP/byte"),
        (0.449, "0.4"),
        (0.404, "0.40"),
        # 2.675 is 2.67499999999999982 in binary and still rounds up, as it is written.
        (2.675, "2.68"),
        (0.1398, "14 %"),
        (0.1398, "14%"),
        (1.5476, "1.55x"),
        (4.284e12, "4.28 TB/s"),
        (2 * 2**30, "2.00 GiB"),
        (13.2e9, "13.2 GB"),
        (2048, "2,048 FLOP/byte"),
        (-3.2, "-3.2"),
        (4.6e-3, "4.6 ms"),
        (np.float32(0.5), "0.50"),
        (0.5, "at most 0.5 s"),
        (2.0, "at least 2x"),
        (0.49, "below 0.5 s"),
        (0.51, "above 0.5 s"),
    ],
)
def test_claim_holds(value, expected):
    assert repr(claim(f"It is {expected}.", value, expected)) == f"✓ checked: It is {expected}."


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (295.5, "295 FLOP/byte"),
        (294.4999, "295 FLOP/byte"),
        (0.406, "0.40"),
        (0.45, "0.4"),
        (14, "14 %"),
        (2e9, "2.00 GiB"),
        (math.nan, "295 FLOP/byte"),
        (math.inf, "at least 2x"),
        (0.50001, "at most 0.5 s"),
        (0.5, "below 0.5 s"),
        (1.99, "at least 2x"),
        (2.0, "above 2x"),
    ],
)
def test_claim_fails(value, expected):
    with pytest.raises(ClaimError, match="does not hold: computed .*expected"):
        claim(f"It is {expected}.", value, expected)


def test_failing_claim_says_statement_and_value_in_the_expected_unit_on_one_line():
    with pytest.raises(ClaimError) as raised:
        claim("A copy moves 4.30 TB/s.", 4.28e12, "4.30 TB/s")
    assert str(raised.value) == "'A copy moves 4.30 TB/s.' does not hold: computed 4.28 TB/s, expected 4.30 TB/s"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("The ridge is 296 FLOP/byte.", "295 FLOP/byte"),
        ("The ridge is 295.", "295 FLOP/byte"),
        ("The ridge is 1295 FLOP/byte.", "295 FLOP/byte"),
        ("The ridge is 0.295 FLOP/byte.", "295 FLOP/byte"),
        ("The rate is 295 FLOP/s.", "295 FLOP"),
        ("The ratio is 295.3.", "295"),
        ("It takes 295 s.", "at most 295 s"),
    ],
)
def test_claim_text_and_number_disagree(statement, expected):
    with pytest.raises(ClaimError, match="text and number disagree"):
        claim(statement, 295.0, expected)


def test_claim_without_number_is_refused():
    with pytest.raises(ClaimError, match="not a number with a unit"):
        claim("It is fast.", 1.0, "fast")


def test_unit_slip_raises():
    elements, moved = 4 * units.element, 4 * units.byte
    claim("It moves 4 byte.", moved, "4 byte")
    with pytest.raises(units.UnitError, match="expected byte, got element"):
        claim("It moves 4 byte.", elements, "4 byte")
    with pytest.raises(units.UnitError, match="unknown unit"):
        claim("It moves 4 bites.", 4.0, "4 bites")


def test_claim_line_is_escaped_inherits_its_colour_and_keeps_the_value():
    shown = claim("a < b: 295 FLOP/byte", 295.34, "295 FLOP/byte")._repr_html_()
    assert 'class="claim"' in shown and "a &lt; b" in shown and 'title="computed 295.34 FLOP/byte"' in shown
    assert "color: inherit" in shown and "#" not in shown.replace("&lt;", "")


def test_show_source_reads_the_file_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    expected = "@not_there.jit\ndef kernel(x_ptr):\n    # a reason\n    return x_ptr"
    text = f"import not_there\n\n{expected}\n\ndef other():\n    pass\n"
    (tmp_path / "kernels" / "softmax.py").write_text(text)
    monkeypatch.setattr(lesson, "PACKAGE", tmp_path)
    for module in ("kernels.softmax", "rooflab.kernels.softmax", "kernels/softmax.py"):
        assert show_source(module, "kernel").text == expected
    assert show_source("kernels.softmax", "kernel")._repr_markdown_() == f"```python\n{expected}\n```"
    assert "not_there" not in sys.modules
    with pytest.raises(LookupError, match="defines no 'kernl'; choose from kernel, other"):
        show_source("kernels.softmax", "kernl")
    with pytest.raises(LookupError, match="no module 'kernels.softmx'; choose from softmax"):
        show_source("kernels.softmx", "kernel")


def area(**changes) -> Question:
    fields = {
        "name": "area",
        "unit": "m2",
        "example": {"a": 2, "b": 3},
        "draw": lambda pick: {"a": pick(range(1, 99)), "b": pick(range(1, 99))},
        "right": lambda a, b: a * b,
        "wrong": {"you added": lambda a, b: a + b, "you forgot b": lambda a, b: a},
    }
    return Question(**fields | changes)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda a, b: a + b, "you added"),
        (lambda a, b: a, "you forgot b"),
        (lambda a, b: 6, "the same number for every input"),
        (lambda a, b: 5, "the same number for every input, so use the arguments; and you added"),
        (lambda a, b: 2 * a * b, "too large by a factor 2"),
        (lambda a, b: 1.0005 * a * b, "off by 0.05 %; do not round"),
        (lambda a, b: a * b / 4, "too small by a factor 4"),
        (lambda a, b: -a * b, "must be positive"),
        (lambda a, b: None, "your function returned None"),
        (lambda a, b: math.nan, "must be finite"),
        (lambda a, b: math.inf, "must be finite"),
        (lambda a, b: "6", "not a str"),
        (lambda a, b: True, "not a bool"),
        (lambda a, b: [6], "not a list"),
        (lambda a, b: np.ones(3), "not a ndarray"),
        (lambda a, b: 6j, "not a complex"),
        (lambda a: a, "must take"),
        (6, "pass the function itself"),
    ],
)
def test_question_rejects_with_a_reason(answer, reason):
    with pytest.raises(WrongAnswer, match=reason):
        area().check(answer)


def test_question_accepts_right_answers_of_any_number_type():
    for answer in (lambda a, b: a * b, lambda a, b: np.float32(a * b), lambda b, a: np.int64(a) * b):
        assert repr(area().check(answer)) == "✓ area: right for 24 inputs"


def test_question_draws_the_same_for_the_same_seed_only():
    assert area().inputs(3) == area().inputs(3) != area().inputs(4)
    assert area().inputs(3)[0] == {"a": 2, "b": 3}


def test_question_whose_right_answer_is_0():
    given = {"example": {"a": 2, "b": 0}, "draw": lambda pick: {"a": pick(range(1, 9)), "b": pick(range(9))}}
    with pytest.raises(WrongAnswer, match="the result must be 0 there"):
        area(**given, wrong={}).check(lambda a, b: a * b + 1)


def test_question_lets_other_errors_through():
    def stub(a, b):
        raise NotImplementedError("write your answer here")

    with pytest.raises(NotImplementedError, match="write your answer here"):
        area().check(stub)


def test_question_tries_its_rules_once_the_values_are_right():
    strict = area(rules={"it must be commutative": lambda answer: answer(2, 5) == answer(5, 2)})
    strict.check(lambda a, b: a * b)
    with pytest.raises(WrongAnswer, match="the values are right, but it must be commutative"):
        strict.check(lambda a, b: a * b if (a, b) != (2, 5) else 0)
    with pytest.raises(WrongAnswer, match="you added"):
        strict.check(lambda a, b: a + b)


def outer(**changes) -> ArrayQuestion:
    fields = {
        "name": "outer",
        "unit": "",
        "example": {"x": np.arange(3.0), "y": np.arange(4.0)},
        "draw": lambda pick: {"x": np.full(pick((2, 5)), pick((2.0, 7.0))), "y": np.arange(pick((3, 6)))},
        "right": lambda x, y: np.outer(x, y),
        "wrong": {
            "you added": lambda x, y: np.add.outer(x, y),
            "you divided": lambda x, y: np.divide.outer(x, 0.0 * y),
        },
    }
    return ArrayQuestion(**fields | changes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            lambda x, y: np.add.outer(x, y),
            r"you added. For x=array\(3,\), y=array\(4,\) you returned array\(3,4\) from 0 to 5",
        ),
        (lambda x, y: np.divide.outer(x, 0.0 * y), "you divided"),
        (lambda x, y: np.outer(x, y) + (np.outer(x, y) == 6), "1 of 12 values are off, by up to 0.17 of the largest"),
        (lambda x, y: np.outer(x, y) * np.nan, "must be finite"),
        (lambda x, y: np.outer(y, x), r"must have shape \(3, 4\).*it has shape \(4, 3\)"),
        (lambda x, y: None, "your function returned None"),
        (lambda x, y: "text", "return real numbers, not a str"),
        (lambda x, y: [[1], [1, 2]], "return real numbers, not a list"),
        (lambda x, y: np.outer(x, y) == 0, "return real numbers"),
        (lambda x: x, "must take"),
        (np.ones(3), "pass the function itself"),
    ],
)
def test_array_question_rejects_with_a_short_reason(answer, reason):
    with pytest.raises(WrongAnswer, match=reason) as raised:
        outer().check(answer)
    assert len(str(raised.value)) < 400 and "\n" not in str(raised.value)


def test_array_question_accepts_any_right_array():
    for convert in (np.asarray, np.float32, np.ndarray.tolist):
        assert (
            repr(outer().check(lambda x, y, convert=convert: convert(np.outer(x, y)))) == "✓ outer: right for 24 inputs"
        )


def test_judged_reports_the_first_problem_only_and_lets_other_errors_through():
    def stub(rows):
        raise NotImplementedError

    lengths = Judged("rows", ("rows",), lambda answer: [f"{n} is odd" for n in answer([1, 2, 3]) if n % 2])
    assert repr(lengths.check(lambda rows: [2])) == "✓ rows: right"
    for answer, reason in (
        (lambda rows: rows, "rows: 1 is odd."),
        (lambda: [2], r"your function must take \(rows\)"),
        ([2], "pass the function itself"),
    ):
        with pytest.raises(WrongAnswer, match=reason):
            lengths.check(answer)
    with pytest.raises(NotImplementedError):
        lengths.check(stub)


def test_short_errors_show_no_traceback_in_a_notebook():
    assert WrongAnswer("area: you added.")._render_traceback_() == ["WrongAnswer: area: you added."]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"a": True, "b": True}, r"\(b\) is false: water is wet"),
        ({"a": False, "b": False}, r"\(a\) is true: it burns"),
        ({"a": True}, "keys a, b"),
        ({"a": True, "b": None}, r"\(b\) must be True or False"),
        (None, "keys a, b"),
    ],
)
def test_true_false_rejects_with_a_reason(answer, reason):
    question = TrueFalse(
        "elements", {"a": ("Fire is hot.", True, "it burns"), "b": ("Water is dry.", False, "water is wet")}
    )
    assert "all 2" in repr(question.check(lambda: {"a": True, "b": False}))
    with pytest.raises(WrongAnswer, match=reason):
        question.check(lambda: answer)
