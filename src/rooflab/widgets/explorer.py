"""The roofline explorer: an ipywidget in a live notebook, and the same front end without a kernel on a static page."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import math
from importlib import resources

import anywidget
import traitlets

from .. import ledger
from ..roofline import LAUNCH, Bound, Roof, Roofline
from ..units import si
from .scenario import Scenario, Slider, resolve


def static_text(name: str) -> str:
    """Return the text of a front-end file."""
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def all_formulas() -> list[ledger.Formula]:
    """Return every formula that the front end can call."""
    counts = (formula for workload in ledger.WORKLOADS.values() for formula in workload.formulas)
    return [*ledger.ROOFLINE.values(), *ledger.OTHERS.values(), *counts]


@functools.cache
def formulas_js() -> str:
    """Return the JavaScript text that defines FORMULAS: one function, its symbols and its MathML a formula."""
    entries = []
    for formula in all_formulas():
        symbols = json.dumps([symbol.name for symbol in formula.symbols])
        math_tokens = json.dumps(formula.mathml_tokens(), ensure_ascii=False)
        entries.append(f"  {formula.name}: {{ symbols: {symbols}, call: {formula.js()}, math: {math_tokens} }},")
    return "const FORMULAS = {\n" + "\n".join(entries) + "\n};\n"


def module_source() -> str:
    """Return the ES module that a live notebook loads."""
    return formulas_js() + static_text("common.js") + static_text("explorer.js") + "\nexport default { render };\n"


def site_script() -> str:
    """Return the one classic script of the static site: formulas, front ends and host; it needs no eval."""
    front_ends = "".join(map(static_text, ("common.js", "explorer.js", "bits.js", "host.js")))
    return "(() => {\n" + formulas_js() + front_ends + "})();\n"


def site_css() -> str:
    """Return the explorers' style sheet."""
    return static_text("explorer.css")


class RooflineExplorer(anywidget.AnyWidget):
    """A roofline with sliders; each slider is a trait of its own name, so ipywidgets can be linked to it.

    >>> from rooflab.widgets import RooflineExplorer, roofline_scenario
    >>> explorer = RooflineExplorer(roofline_scenario())
    >>> explorer.device, explorer.dtype
    ('h100-sxm', 'bf16')
    """

    scenario = traitlets.Dict().tag(sync=True)
    static = traitlets.Bool(False).tag(sync=True)
    device = traitlets.Unicode().tag(sync=True)
    dtype = traitlets.Unicode().tag(sync=True)
    basis = traitlets.Unicode("paper").tag(sync=True)
    launch = traitlets.Unicode("none").tag(sync=True)
    active = traitlets.Int(0).tag(sync=True)
    points = traitlets.List().tag(sync=True)

    def __init__(self, scenario: Scenario, **state):
        self._esm, self._css = module_source(), site_css()
        self._scenario = scenario
        self._devices = {device.id: device for device in scenario.devices}
        sliders = {slider.name: traitlets.Float(float(slider.start)).tag(sync=True) for slider in scenario.sliders}
        if unknown := set(state) - set(scenario.defaults()):
            choices = ", ".join(scenario.defaults())
            raise traitlets.TraitError(f"unknown setting {', '.join(sorted(unknown))}; choose from {choices}")
        self.add_traits(**sliders)
        for slider in scenario.sliders:
            self._register_validator(self._named if slider.names else self._positive, (slider.name,))
        points = [vars(point) for point in scenario.points]
        super().__init__(**(scenario.defaults() | state), scenario=scenario.state(), points=points)
        for slider in scenario.sliders:
            if slider.fields:
                self.observe(self._preset, slider.name)

    def _slider(self, name: str):
        return next(slider for slider in self._scenario.sliders if slider.name == name)

    def _preset(self, change) -> None:
        """Move the sliders that a menu's choice brings along."""
        slider = self._slider(change["name"])
        chosen = slider.fields[slider.values.index(change["new"])]
        for other in {each.name for each in self._scenario.sliders} & chosen.keys():
            setattr(self, other, float(chosen[other]))

    def _named(self, _owner, proposal):
        slider, value = self._slider(proposal["trait"].name), proposal["value"]
        if value not in slider.values:
            choices = ", ".join(f"{each} ({name})" for each, name in zip(slider.values, slider.names, strict=True))
            raise traitlets.TraitError(f"{slider.name} is {value}; choose from {choices}")
        return value

    def _positive(self, _owner, proposal):
        value = proposal["value"]
        if not (math.isfinite(value) and value > 0):
            raise traitlets.TraitError(f"{proposal['trait'].name} is {value}; it must be positive and finite")
        return value

    @traitlets.validate("device")
    def _known_device(self, proposal):
        if proposal["value"] not in self._devices:
            choices = ", ".join(self._devices)
            raise traitlets.TraitError(f"unknown device {proposal['value']!r}; choose from {choices}")
        return self._fits(proposal["value"], self.dtype, proposal["value"])

    @traitlets.validate("dtype")
    def _known_dtype(self, proposal):
        return self._fits(self.device, proposal["value"], proposal["value"])

    @traitlets.validate("basis")
    def _known_basis(self, proposal):
        return _one_of("basis", proposal["value"], ("paper", "measured"))

    @traitlets.validate("launch")
    def _known_launch(self, proposal):
        return _one_of("launch", proposal["value"], self._scenario.launch_modes)

    @traitlets.validate("active")
    def _known_active(self, proposal):
        return _one_of("active", proposal["value"], tuple(range(len(self._scenario.dots))))

    def _fits(self, device: str, dtype: str, value: str) -> str:
        # Traits that change together are validated in any order: an unknown device is for its own validator.
        known = self._devices.get(device)
        if known and dtype and dtype not in (has := known.dtypes("tensor")):
            raise traitlets.TraitError(f"{known.title} has no {dtype} peak; choose a dtype from {', '.join(has)}")
        return value

    def _values(self) -> dict[str, float]:
        return {slider.name: getattr(self, slider.name) for slider in self._scenario.sliders}

    def bounds(self) -> list[Bound]:
        """Return the bound of each dot for the state that the explorer is in."""
        line = self._roofline()
        return [line.bound(demand) for demand in self._scenario.demands(self.dtype, **self._values())]

    def totals(self) -> list[dict]:
        """Return for each total its label, `time_s`, `time_per_token_s` and `tokens_per_s`."""
        times, sources = [bound.time_s for bound in self.bounds()], self._scenario.sources(self.dtype, **self._values())
        found = []
        for total in self._scenario.totals:
            time_s = sum(times[index] * resolve(many, sources) for index, many in total.terms)
            new, batch = resolve(total.new, sources), resolve(total.batch, sources)
            rates = {"time_per_token_s": time_s / new, "tokens_per_s": batch * new / time_s}
            found.append({"label": total.label, "time_s": time_s} | rates)
        return found

    def crossings(self) -> list[float | None]:
        """Return for each crossing the slider's value at which the dot meets the ridge; None if none in its range."""
        line, found = self._roofline(), []
        for index, name in self._scenario.crossings:

            def beyond(value, index=index, name=name):
                demand = self._scenario.demands(self.dtype, **(self._values() | {name: value}))[index]
                return demand.intensity_flop_per_byte() >= line.ridge_flop_per_byte(next(iter(demand.work)))

            low, high = self._slider(name).values[0], self._slider(name).values[-1]
            if beyond(low) or not beyond(high):
                found.append(None)
                continue
            for _ in range(60):
                middle = math.sqrt(low * high)
                low, high = (low, middle) if beyond(middle) else (middle, high)
            found.append(high)
        return found

    def _roofline(self) -> Roofline:
        launch = None if self.launch in ("none", "slider") else self.launch
        card = self._devices[self.device]
        line = Roofline.of(card, self.dtype, measured=self.basis == "measured", launch=launch)
        line = dataclasses.replace(line, roofs=(*line.roofs, *self._scenario.unit_roofs(card)))
        if self.launch != "slider":
            return line
        floor = Roof(LAUNCH, "launch", getattr(self, self._scenario.launch), "launch, as set")
        return dataclasses.replace(line, roofs=(*line.roofs, floor))

    def __repr__(self) -> str:
        # Stable, so that a stored output does not change from run to run.
        return f"RooflineExplorer({self._scenario.id!r})"

    def _repr_mimebundle_(self, **kwargs):
        live = super()._repr_mimebundle_(**kwargs)
        data, metadata = live if isinstance(live, tuple) else (live, {})
        return data | {"text/html": self.static_html()}, metadata

    def static_html(self) -> str:
        """Return the kernel-free twin: the state as JSON, and a picture and a table for readers without JavaScript."""
        defaults = {name: getattr(self, name) for name in self._scenario.defaults()}
        # An integer stays one on the way to the page: 4096, not 4096.0.
        defaults = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in defaults.items()}
        state = json.dumps(
            self.scenario | {"defaults": defaults, "points": self.points}, ensure_ascii=False, separators=(",", ":")
        )
        # `</` would end the script element early.
        state = state.replace("</", "<\\/")
        return (
            f'<div class="rooflab-explorer" data-rooflab-explorer="{html.escape(self._scenario.id)}">'
            f'<script type="application/json">{state}</script>{self._picture()}{self._table()}</div>'
        )

    def _picture(self) -> str:
        from ..figures import roofline_figure, svg

        bounds = self.bounds()
        labels = [dot.label for dot in self._scenario.dots]
        alt = f"Roofline of {self._roofline().title}. " + "; ".join(map(str, bounds))
        return svg(roofline_figure(self._roofline(), [bound.demand for bound in bounds], labels=labels), alt)

    def _table(self) -> str:
        rows = "".join(
            f"<tr><th scope='row'>{html.escape(dot.label)}</th><td>{si(bound.demand.intensity_flop_per_byte())}</td>"
            f"<td>{si(bound.attainable_flop_per_s, 'FLOP/s')}</td><td>{si(bound.time_s, 's')}</td>"
            f"<td>{html.escape(bound.roof.label)}</td></tr>"
            for dot, bound in zip(self._scenario.dots, self.bounds(), strict=True)
        )
        given = ", ".join(
            f"{slider.label} {_shown(slider, getattr(self, slider.name))}" for slider in self._scenario.sliders
        )
        title = self._devices[self.device].title
        head = "".join(f"<th>{name}</th>" for name in ("workload", "FLOP/byte", "at most", "at least", "bound by"))
        return (
            f"<table><caption>{html.escape(f'{title}, {self.dtype}; {given}')}. Sliders need JavaScript.</caption>"
            f"<thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _shown(slider: Slider, value: float) -> str:
    """Return a slider's value as text: its name, or the number with its unit."""
    if slider.names:
        return slider.names[slider.values.index(value)]
    return si(value, slider.unit) if slider.unit else f"{value:g}"


def _one_of(name: str, value, choices: tuple):
    if value not in choices:
        raise traitlets.TraitError(f"{name} is {value!r}; choose from {', '.join(map(str, choices))}")
    return value
