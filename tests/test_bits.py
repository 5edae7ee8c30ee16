"""The format explorer's Python side; its front end is tested in tests/browser."""

import json
import math
import re

import ipywidgets
import pytest
import traitlets

from rooflab import numerics
from rooflab.widgets import FormatExplorer
from rooflab.widgets.bits import FORMATS, bits_source, show


def test_starts_at_one_in_every_format():
    assert {name: FormatExplorer(name).value for name in FORMATS} == dict.fromkeys(FORMATS, 1.0)
    assert list(FORMATS)[:2] == ["E4M3", "E5M2"]


def test_a_code_says_the_value_and_its_bits():
    explorer = FormatExplorer(format="E5M2", code=0b1_10000_01)
    assert (explorer.value, explorer.bits()) == (-2.5, "1 | 10000 | 01")
    explorer.code = 0b0_11111_00
    assert explorer.value == math.inf


def test_a_typed_number_is_rounded_anew_for_each_format_and_way():
    explorer = FormatExplorer(typed="1000")
    assert math.isnan(explorer.value)
    explorer.saturate = True
    assert explorer.value == 448
    for name in ("BF16", "E5M2", "E4M3"):  # a BF16 code would be out of range in E5M2
        explorer.format = name
        assert explorer.code == numerics.FORMATS[name].encode(1000.0, saturate=True)
        assert explorer.typed == "1000"


def test_a_chosen_code_drops_the_typed_number():
    explorer = FormatExplorer(typed="3.3")
    explorer.code = 0
    assert (explorer.typed, explorer.code) == ("", 0)
    explorer.format = "BF16"
    assert explorer.code == 0, "nothing typed is left to be rounded"


def test_changes_of_the_front_end_arrive_together():
    explorer = FormatExplorer("BF16", typed="3.3")
    explorer.set_state({"format": "E4M3", "code": 0x38, "typed": "", "saturate": True})
    assert (explorer.format, explorer.code, explorer.typed, explorer.saturate) == ("E4M3", 0x38, "", True)


def test_real_ipywidgets_can_be_linked():
    explorer, box = FormatExplorer(), ipywidgets.Text("0.1")
    traitlets.link((box, "value"), (explorer, "typed"))
    assert explorer.value == numerics.E4M3.round(0.1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "E3M4"}, "unknown format 'E3M4'; choose from E4M3, E5M2, BF16, FP16"),
        ({"code": 256}, "code is 256; E4M3 has codes 0 to 255"),
        ({"code": -1}, "code is -1; E4M3 has codes 0 to 255"),
        ({"format": "E5M2", "code": 0x3F80}, "code is 16256; E5M2 has codes 0 to 255"),
        ({"typed": "three"}, "'three' is no number; type one such as 3.3, -1e-4, inf or nan"),
        ({"typed": "1_000"}, "'1_000' is no number"),
        ({"typed": "0x10"}, "'0x10' is no number"),
        ({"bits": 8}, "unknown setting bits; choose from format, code, typed, saturate"),
        ({"saturate": "yes"}, "saturate"),
    ],
)
def test_bad_settings_raise_one_line_with_the_choices(change, said):
    with pytest.raises(traitlets.TraitError, match=re.escape(said)) as error:
        FormatExplorer(**change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{"format": "E3M4"}, {"code": 256}, {"typed": "three"}, {"format": "E4M3"}])
def test_a_refused_change_leaves_the_state_as_it_was(change):
    ((name, value),) = change.items()
    explorer = FormatExplorer("BF16") if change == {"format": "E4M3"} else FormatExplorer()
    before = (explorer.format, explorer.code, explorer.typed)
    with pytest.raises(traitlets.TraitError):
        setattr(explorer, name, value)
    assert (explorer.format, explorer.code, explorer.typed) == before


def test_repr_is_stable_and_html_is_the_twin():
    explorer = FormatExplorer("E5M2", typed="1e6")
    assert repr(explorer) == "FormatExplorer('E5M2', 0x7c)"
    data, _ = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    page = data["text/html"]
    state = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert {name: state[name] for name in ("format", "code", "typed", "saturate")} == {
        "format": "E5M2",
        "code": 0x7C,
        "typed": "1e6",
        "saturate": False,
    }
    assert state["formats"] == explorer.formats and state["formats"]["E4M3"]["infinity"] is False


def test_without_javascript_a_table_has_every_format_and_the_bits():
    page = FormatExplorer(code=0b0_1111_110).static_html()
    assert "E4M3, bits 0 | 1111 | 110: 448. Toggling bits needs JavaScript." in page
    rows = dict(re.findall(r"<tr><th scope='row'>(\w+)</th>(.*?)</tr>", page))
    cells = {name: re.findall(r"<td>(.*?)</td>", row) for name, row in rows.items()}
    assert cells["E4M3"] == ["4 + 3", "448", "0.015625", "0.001953125", "0.125", "NaN"]
    assert cells["E5M2"] == ["5 + 2", "57344", "6.103516×10⁻⁵", "1.525879×10⁻⁵", "0.25", "∞"]
    assert list(cells) == list(FORMATS)
    assert len(re.findall("<th scope='col'>", page)) == 1 + len(cells["E4M3"])


def test_show_uses_at_most_seven_digits():
    assert [show(v) for v in (0.0, -0.0, 9999999.0, 1e7, 1e-4, 9.9999999e-5, -2.5, -math.inf, math.nan)] == [
        *("0", "-0", "9999999", "1×10⁷", "0.0001", "0.0001", "-2.5", "-∞", "NaN")
    ]


def test_front_end_needs_no_imports_and_no_eval():
    text = bits_source()
    assert not re.search(r"\bimport\b|\beval\(|new Function|\bfetch\(|XMLHttpRequest", text.replace("No imports", ""))
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert text.count("export ") == 1 and text.endswith("export default { render: formatExplorer.render };\n")
