"""The format explorer on a static page, moved as a reader moves it; expected numbers come from rooflab.numerics."""

import math
import random
import re
import unicodedata

import pytest
import traitlets

from rooflab import widgets
from rooflab.widgets import FormatExplorer
from rooflab.widgets.bits import FORMATS, bits_source, show

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
LOOK = "body { font-family: sans-serif; max-width: 700px; margin: 0 auto; padding: 1rem; color: #222; }"
DARK = "body { background: #121212; color: #ddd; }"


@pytest.fixture
def open_bits(page_at, tmp_path):
    """Return a function that opens a page of one format explorer from a file, and returns the page."""

    def open_page(fragment="", dark=False, js=True, width=1000, height=1100, **state):
        page_text = (
            f'<!doctype html><html lang="en" data-theme="{"dark" if dark else "light"}"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>Bits</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{LOOK}{DARK if dark else ''}{widgets.site_css()}</style></head><body><main><h1>Bits</h1>"
            f"{FormatExplorer(**state).static_html()}</main><script>{widgets.site_script()}</script></body></html>"
        )
        file = tmp_path / "bits.html"
        file.write_text(page_text, encoding="utf-8")
        return page_at(file.as_uri() + fragment, width=width, height=height, dark=dark, js=js)

    return open_page


def settle(page):
    """Wait for the frame that the last change asked for."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def state(page):
    return page.evaluate(
        """() => {
          const { state } = document.querySelector('[data-rooflab-format]').model;
          return [state.format, state.code, state.typed, state.saturate];
        }"""
    )


def fact(page, name):
    return page.locator(f"[data-fact={name}]").inner_text()


def readout(page):
    return page.locator(".rooflab-readout").inner_text()


def mark(page, row):
    return page.locator(f"[data-row={row}] .rooflab-mark").get_attribute("data-value")


def numbers_of(format, rng):
    """Return numbers to round to `format`: ties, neighbours of ties, overflow, subnormals, zeros, and any size."""
    largest, least = format.largest, format.smallest_subnormal
    edge = largest + format.spacing(largest) / 2
    exact = [0.0, -0.0, math.inf, -math.inf, largest, edge, math.nextafter(edge, 0), math.nextafter(edge, math.inf)]
    exact += [least / 2, math.nextafter(least / 2, 1), least * 1.5, 5e-324, 1.7e308, 2.0**-1022, format.smallest_normal]
    exact += [format.smallest_normal - least / 2]
    values = format.values()
    pairs = [rng.randrange(len(values) - 1) for _ in range(700)]
    ties = [(values[i] + values[i + 1]) / 2 for i in pairs]
    near = [math.nextafter(tie, rng.choice([-math.inf, math.inf])) for tie in ties[:300]]
    low, high = math.log2(least) - 2, math.log2(largest) + 2
    sizes = [rng.choice([-1, 1]) * 2 ** rng.uniform(low, high) for _ in range(700)]
    subnormal = [rng.uniform(-1, 1) * format.smallest_normal for _ in range(300)]
    return [number for value in exact for number in (value, -value)] + ties + near + sizes + subnormal


# JSON has no NaN, infinity or negative zero.
WIRE = "v => Number.isNaN(v) ? 'nan' : Object.is(v, -0) ? '-0' : String(v).replace('Infinity', 'inf')"


def alike(a, b):
    return math.isnan(a) and math.isnan(b) or a == b and math.copysign(1, a) == math.copysign(1, b)


def kind_of(format, value):
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity"
    if value == 0:
        return "zero" if math.copysign(1, value) > 0 else "negative zero"
    return "subnormal" if abs(value) < format.smallest_normal else "normal"


@pytest.mark.parametrize("name", FORMATS)
def test_javascript_decodes_as_python(open_bits, name):
    page, format = open_bits(), FORMATS[name]
    codes = list(range(2**format.bits))
    if format.bits > 8:
        codes = random.Random(5).sample(codes, 2000) + [0, 2**15, 2**15 - 1, format.encode(math.inf), 1]
    got = page.evaluate(
        f"""([name, codes]) => {{
          const wire = {WIRE}, f = document.querySelector('[data-rooflab-format]').model.state.formats[name];
          return codes.map(code => {{
            const value = rooflab.formatExplorer.decode(f, code);
            const r = rooflab.formatExplorer.evaluate(f, {{ format: name, code, typed: '', saturate: false }});
            return [wire(value), rooflab.formatExplorer.show(value), r.finite ? wire(r.spacing) : null, r.kind];
          }});
        }}""",
        [name, codes],
    )
    for code, (value, text, spacing, kind) in zip(codes, got, strict=True):
        expected = format.decode(code)
        assert alike(float(value), expected), f"{name} {code:#x}"
        assert text == show(expected)
        step = format.spacing(expected) if math.isfinite(expected) else None
        assert step == (spacing and float(spacing)), f"{name} {code:#x}"
        assert kind == kind_of(format, expected), f"{name} {code:#x}"


@pytest.mark.parametrize("saturate", [False, True], ids=["plain", "saturating"])
@pytest.mark.parametrize("name", FORMATS)
def test_javascript_rounds_typed_numbers_as_python(open_bits, name, saturate):
    page, format = open_bits(), FORMATS[name]
    texts = [repr(number) for number in numbers_of(format, random.Random(6))]
    texts += ["nan", "-0", "+1.", ".5", "1E3", "-Infinity", "1e400", "1e-400"]
    assert len(texts) >= 2000
    got = page.evaluate(
        """([name, texts, saturate]) => {
          const f = document.querySelector('[data-rooflab-format]').model.state.formats[name];
          return texts.map(text => rooflab.formatExplorer.encode(f, rooflab.formatExplorer.parse(text), saturate));
        }""",
        [name, texts, saturate],
    )
    wrong = [
        (text, code)
        for text, code in zip(texts, got, strict=True)
        if code != format.encode(float(text), saturate=saturate)
    ]
    assert wrong == []


def test_both_sides_take_the_same_texts_for_numbers(open_bits):
    page = open_bits()
    texts = ["3.3", "1e5", "-.5", "5.", ".", "", "1_0", "0x10", "1e", "e5", "--1", "inf", "NaN", "infinit", "3,3", "١"]
    got = page.evaluate("texts => texts.map(text => rooflab.formatExplorer.parse(text) !== null)", texts)
    taken = []
    for text in texts:
        try:
            taken.append(FormatExplorer(typed=text).typed != "")
        except traitlets.TraitError:
            taken.append(False)
    assert got == taken


def test_nothing_changes_at_load(open_bits):
    page = open_bits()
    assert state(page) == ["E4M3", 0x38, "", False]
    assert page.locator(".rooflab-error").is_hidden()
    assert readout(page) == "E4M3: 1, a normal number."


def test_a_mouse_toggles_bits(open_bits):
    page = open_bits()
    bits = page.locator("[data-bit]")
    assert bits.count() == 8
    assert bits.evaluate_all("all => all.map(b => b.textContent).join('')") == "00111000"
    for name, code in [
        ("mantissa bit, worth 1/2", 0x3C),
        ("sign bit", 0xBC),
        ("exponent bit, worth 8", 0xFC),
        ("mantissa bit, worth 1/2", 0xF8),
    ]:
        button = page.get_by_role("button", name=name, exact=True)
        place = button.bounding_box()
        page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        settle(page)
        assert state(page)[1] == code
        assert fact(page, "value") == f"{show(FORMATS['E4M3'].decode(code))}, code {code:#04x}"
        pressed = bits.evaluate_all("all => all.map(b => +(b.getAttribute('aria-pressed') === 'true')).join('')")
        assert pressed == f"{code:08b}" == "".join(bits.all_inner_texts())
    groups = page.locator(".rooflab-says").all_inner_texts()
    assert groups == ["sign", "s = 1", "exponent", "e = 15, bias 7", "mantissa", "m = 0 of 8"]


def test_the_keyboard_reaches_bits_and_keeps_its_place(open_bits):
    page = open_bits()
    page.get_by_role("button", name="sign bit").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    settle(page)
    assert state(page)[1] == 0xF8
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')") == "exponent bit, worth 8"
    page.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert state(page)[1] == 0xF7, "-256 steps up to -240"


@pytest.mark.parametrize("name", ["E4M3", "E5M2"])
def test_the_slider_steps_through_all_finite_values_in_order(open_bits, name):
    page = open_bits(format=name)
    values = page.evaluate(
        f"""async () => {{
          const wire = {WIRE}, slider = document.querySelector('.rooflab-slider input'), values = [];
          const box = document.querySelector('[data-rooflab-format]'), f = box.model.state.formats['{name}'];
          for (let rank = Number(slider.min); rank <= Number(slider.max); rank++) {{
            slider.value = rank;
            slider.dispatchEvent(new Event('input', {{bubbles: true}}));
            values.push(wire(rooflab.formatExplorer.decode(f, box.model.state.code)));
          }}
          return values;
        }}"""
    )
    expected = FORMATS[name].values()
    zero = expected.index(0)
    assert values[zero : zero + 2] == ["-0", "0"]
    del values[zero]
    assert [float(value) for value in values] == expected


def test_a_mouse_drags_the_slider_from_least_to_largest(open_bits):
    page = open_bits()
    place = page.get_by_role("slider").bounding_box()
    y = place["y"] + place["height"] / 2
    page.mouse.move(place["x"] + place["width"] * 0.71, y)
    page.mouse.down()
    page.mouse.move(place["x"] + 1, y, steps=6)
    settle(page)
    assert (readout(page), fact(page, "down")) == ("E4M3: -448, a normal number.", "none; beyond is NaN")
    page.mouse.move(place["x"] + place["width"] * 0.75, y, steps=6)
    settle(page)
    middle = page.locator("[data-row=E4M3] .rooflab-mark").bounding_box()["x"]
    page.mouse.move(place["x"] + place["width"] - 1, y, steps=6)
    page.mouse.up()
    settle(page)
    assert state(page)[1] == 0x7E and fact(page, "up") == "none; beyond is NaN"
    assert fact(page, "down") == "416 (-32)"
    assert page.locator("[data-row=E4M3] .rooflab-mark").bounding_box()["x"] > middle + 20
    assert page.get_by_role("slider").get_attribute("aria-valuetext") == "448"


def test_spacing_at_a_power_of_two_differs_up_and_down(open_bits):
    page = open_bits()
    assert (fact(page, "up"), fact(page, "down")) == ("1.125 (+0.125)", "0.9375 (-0.0625)")
    assert (fact(page, "spacing"), fact(page, "relative")) == ("2⁻³ = 0.125", "12.5 %")
    assert (fact(page, "largest"), fact(page, "smallest")) == ("448", "0.001953125; normal 0.015625")


@pytest.mark.parametrize("name", ["E4M3", "E5M2"])
def test_neighbours_equal_python(open_bits, name):
    page, format = open_bits(format=name), FORMATS[name]
    values = format.values()
    got = page.evaluate(
        f"""name => {{
          const wire = {WIRE}, f = document.querySelector('[data-rooflab-format]').model.state.formats[name];
          return Array.from({{length: 256}}, (_, code) => {{
            const r = rooflab.formatExplorer.evaluate(f, {{ format: name, code, typed: '', saturate: false }});
            return r.finite ? [wire(r.value), wire(r.down), wire(r.up)] : null;
          }});
        }}""",
        name,
    )
    for value, down, up in filter(None, got):
        index = values.index(float(value))
        around = [values[i] if 0 <= i < len(values) else math.nan for i in (index - 1, index + 1)]
        assert all(
            math.isnan(a) and math.isnan(b) or a == b for a, b in zip(map(float, (down, up)), around, strict=True)
        )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("E4M3", "3.3", "E4M3: 3.3 becomes 3.25, a normal number; relative error -1.52 %."),
        ("E5M2", "3.3", "E5M2: 3.3 becomes 3.5, a normal number; relative error 6.06 %."),
        ("E4M3", "464", "E4M3: 464 becomes 448, a normal number; relative error -3.45 %."),
        ("E4M3", "465", "E4M3: 465 becomes NaN; it is beyond the largest value, 448."),
        ("E5M2", "-61440", "E5M2: -61440 becomes -∞; it is beyond the largest value, 57344."),
        ("E5M2", "\u22122", "E5M2: -2 becomes -2, a normal number; relative error 0 %."),
        ("E4M3", "0.002", "E4M3: 0.002 becomes 0.001953125, a subnormal number; relative error -2.34 %."),
        ("E4M3", "-1e-9", "E4M3: -1e-9 becomes -0, negative zero; relative error -100 %."),
    ],
)
def test_a_typed_number_is_rounded_while_typing(open_bits, name, text, said):
    page = open_bits(format=name)
    page.get_by_label("Round a number").press_sequentially(text)
    settle(page)
    assert readout(page) == said
    assert page.get_by_label("Round a number").input_value() == text
    assert page.locator(".rooflab-error").is_hidden()


def test_saturation_and_the_other_format(open_bits):
    page = open_bits()
    assert fact(page, "beyond") == "a magnitude above 464 becomes NaN, or 448 when saturating"
    page.get_by_label("Round a number").fill("1000")
    settle(page)
    assert (mark(page, "E4M3"), mark(page, "E5M2")) == ("NaN", "1024")
    line = page.locator(".rooflab-typed")
    assert line.get_attribute("visibility") == "visible"
    page.get_by_label("Beyond the largest").select_option("true")
    settle(page)
    assert (mark(page, "E4M3"), mark(page, "E5M2")) == ("448", "1024")
    assert readout(page).endswith("beyond the largest value, 448, where this conversion saturates.")
    page.get_by_label("Format").select_option("E5M2")
    settle(page)
    assert state(page) == ["E5M2", FORMATS["E5M2"].encode(1000.0), "1000", True]
    assert fact(page, "beyond") == "a magnitude from 61440 on becomes ∞, or 57344 when saturating"
    page.get_by_label("Round a number").fill("1e6")
    settle(page)
    assert line.get_attribute("visibility") == "hidden", "beyond the axis"


def test_a_value_survives_formats_that_lack_it(open_bits):
    page = open_bits(format="BF16", code=0x3F81)
    page.get_by_label("Format").select_option("E5M2")
    settle(page)
    assert state(page) == ["E5M2", 0x3C, "1.0078125", False]
    assert page.locator("[data-bit]").count() == 8
    page.get_by_label("Format").select_option("BF16")
    settle(page)
    assert state(page)[:2] == ["BF16", 0x3F81]
    page.get_by_role("button", name="mantissa bit, worth 1/128").click()
    settle(page)
    assert state(page)[1:3] == [0x3F80, ""] and page.get_by_label("Round a number").input_value() == ""
    page.get_by_label("Format").select_option("FP16")
    settle(page)
    assert state(page)[:3] == ["FP16", 0x3C00, ""], "1 is in every format"


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({"code": 0b1_0111_100}, "(−1)s·2e−bias·(1+m2M)=(−1)1·27−7·(1+48)=-1.5"),
        ({"code": 0b0_0000_011}, "(−1)s·21−bias·(0+m2M)=(−1)0·21−7·(0+38)=0.005859375"),
        ({"code": 0b0_1111_111}, "Allbitsafterthesignare1:NaN,theonlyone.Thereisnoinfinity."),
        ({"code": 0b0_11111_00, "format": "E5M2"}, "Theexponent'sbitsareall1,andthemantissais0:infinity."),
        ({"code": 0b1_11111_01, "format": "E5M2"}, "Theexponent'sbitsareall1,andthemantissaisnot0:NaN."),
    ],
)
def test_the_formula_is_shown_with_its_numbers(open_bits, options, formula):
    page = open_bits(**options)
    # MathML shows italic letters as characters of their own; NFKC folds them back.
    text = unicodedata.normalize("NFKC", page.locator(".rooflab-math").text_content())
    assert re.sub(r"\s", "", text).startswith(formula)


def test_every_positive_value_has_a_tick(open_bits):
    page = open_bits(format="FP16")
    for name in ("E4M3", "E5M2"):
        ticks = page.locator(f"[data-row={name}] .rooflab-tick").evaluate_all(
            "all => all.map(p => p.getAttribute('d'))"
        )
        subnormal, normal = (re.findall(r"M([\d.]+)", d) for d in ticks)
        positive = [value for value in FORMATS[name].values() if value > 0]
        assert len(subnormal) == 2 ** FORMATS[name].mantissa_bits - 1
        places = [float(x) for x in subnormal + normal]
        assert len(places) == len(positive)
        # Logarithmic, and both formats on one axis.
        slope = (places[-1] - places[0]) / math.log(positive[-1] / positive[0])
        assert all(
            abs(x - places[0] - slope * math.log(v / positive[0])) < 0.05 for x, v in zip(places, positive, strict=True)
        )
    counts = page.locator("[data-row=FP16] .rooflab-band").evaluate_all("all => all.map(r => +r.dataset.count)")
    assert sum(counts) == sum(value > 0 for value in FORMATS["FP16"].values())
    assert counts == [2**bits for bits in range(10)] + [30 * 1024]


@pytest.mark.parametrize("key", ["Enter", "Tab"])
def test_bad_text_says_why_and_keeps_the_last_state(open_bits, key):
    page = open_bits()
    box = page.get_by_label("Round a number")
    box.press_sequentially("3x")
    assert page.locator(".rooflab-error").is_hidden(), "not while typing"
    box.press(key)
    settle(page)
    assert page.locator(".rooflab-error").inner_text() == '"3x" is no number; type one such as 3.3, -1e-4, inf or nan'
    assert box.get_attribute("aria-invalid") == "true" and box.input_value() == "3x"
    assert state(page)[2] == "3"
    box.fill("4")
    settle(page)
    assert page.locator(".rooflab-error").is_hidden() and box.get_attribute("aria-invalid") is None
    assert readout(page).startswith("E4M3: 4 becomes 4")


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("format=E3M4", 'unknown format "E3M4"; choose from E4M3, E5M2, BF16, FP16'),
        ("code=256", "code is 256; E4M3 has codes 0 to 255"),
        ("code=-1", "code=-1 in the link is no code"),
        ("code=", "code= in the link is no code"),
        ("typed=three", '"three" is no number'),
        ("saturate=1", "saturate=1 in the link; choose from true, false"),
        ("colour=red", 'unknown setting "colour" in the link; choose from format, code, typed, saturate'),
    ],
)
def test_a_bad_link_says_why_and_shows_the_last_good_state(open_bits, fragment, said):
    page = open_bits(f"#explorer=format&{fragment}")
    settle(page)
    error = page.locator(".rooflab-error").inner_text()
    assert said in error and "\n" not in error
    assert readout(page) == "E4M3: 1, a normal number."


def test_link_reproduces_the_state_and_reset_returns(open_bits):
    page = open_bits()
    page.get_by_label("Format").select_option("E5M2")
    page.get_by_label("Round a number").fill("-70000")
    page.get_by_label("Beyond the largest").select_option("true")
    settle(page)
    before = state(page)
    assert before == ["E5M2", 0xFB, "-70000", True]
    again = open_bits(page.get_by_role("link", name="Link to this state").get_attribute("href"))
    settle(again)
    assert state(again) == before
    again.get_by_role("button", name="Reset").click()
    settle(again)
    assert state(again) == ["E4M3", 0x38, "", False] and "#" not in again.url
    assert again.get_by_label("Round a number").input_value() == ""


def test_without_javascript_there_is_a_table(open_bits):
    page = open_bits(js=False)
    assert page.locator("tbody tr").count() == len(FORMATS)
    assert page.get_by_text("Toggling bits needs JavaScript").is_visible()


def test_live_module_draws_and_saves(open_bits):
    """The module that JupyterLab loads, with a model that counts what it saves."""
    page = open_bits()
    page.add_script_tag(type="module", content=bits_source().replace("export default", "window.live ="))
    page.wait_for_function("window.live")
    saved = page.evaluate(
        """() => {
          const state = { ...document.querySelector('[data-rooflab-format]').model.state, static: false };
          const handlers = [], saved = [];
          const model = { get: name => state[name], set: (name, value) => { state[name] = value; },
                          on: name => handlers.push(name), off: name => handlers.splice(handlers.indexOf(name), 1),
                          save_changes: () => saved.push([state.code, state.typed]) };
          const el = document.body.appendChild(document.createElement('div'));
          const stop = live.render({ model, el });
          el.querySelector('[data-bit="7"]').click();
          const links = el.querySelectorAll('a').length, watched = handlers.length;
          stop();
          el.remove();
          return { saved, links, watched, left: handlers.length };
        }"""
    )
    assert saved == {"saved": [[0xB8, ""]], "links": 0, "watched": 4, "left": 0}


def test_redraw_takes_less_than_a_frame(open_bits, redraw_ms, capsys):
    times = redraw_ms(open_bits(), 100)
    with capsys.disabled():
        print(f"format explorer redraw: median {times[100]:.2f} ms, 95 % {times[190]:.2f} ms")
    assert times[100] <= 2.0


LOOKS = {
    "desktop": {"typed": "3.3"},
    "phone": {"width": 390, "height": 844, "format": "BF16", "typed": "0.1"},
    "dark": {"dark": True, "format": "FP16", "code": 0x0203},
    "special": {"format": "E5M2", "typed": "1e6"},
}


@pytest.mark.parametrize("look", LOOKS)
def test_it_is_accessible_and_fits(open_bits, violations, pictures, look):
    page = open_bits(**LOOKS[look])
    settle(page)
    page.screenshot(path=pictures / f"bits-{look}.png", full_page=True)
    assert violations(page) == []
    overflow = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0
    # No text of the drawing is cut off or lies on another.
    boxes = page.locator(".rooflab-line text").evaluate_all(
        """all => all.map(t => {
             const b = t.getBoundingClientRect(), s = t.ownerSVGElement.getBoundingClientRect();
             const room = [b.left - s.left, b.top - s.top, s.right - b.right];
             return [t.textContent, ...room, b.left, b.top, b.right, b.bottom];
           })"""
    )
    assert [text for text, left, top, right, *_ in boxes if min(left, top, right) < 0] == []
    clash = [
        (a[0], b[0])
        for i, a in enumerate(boxes)
        for b in boxes[:i]
        if min(a[6], b[6]) - max(a[4], b[4]) > 1 and min(a[7], b[7]) - max(a[5], b[5]) > 2
    ]
    assert clash == []


def test_error_line_is_accessible(open_bits, violations):
    for dark in (False, True):
        page = open_bits("#explorer=format&typed=three", dark=dark)
        settle(page)
        assert page.locator(".rooflab-error").is_visible()
        assert violations(page) == []
