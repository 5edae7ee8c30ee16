"""The panel of a live notebook: choose cases and versions, measure them again, see rows come and dots move."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import ipywidgets

from .. import hardware, records, timing
from ..ledger import Demand
from ..roofline import MEMORY, Bound, Roofline, RooflineError
from ..units import si
from ..widgets import Point, RooflineExplorer
from .base import Experiment, Gpu
from .campaign import Campaign, beyond_l2, is_stale, named
from .results import BOOK_DEVICE, results

# Two panels that measure at once would slow each other.
_MEASURING = threading.Lock()
_COLUMNS = ("case", "version", "GPU time", "wall time", "op/s", "B/s", "of the bound on paper", "GPU time in the book")


def panel(experiment: str | Experiment, explorer: RooflineExplorer | None = None) -> Panel:
    """Return a panel that measures `experiment` on this machine's GPU; without one it is disabled and says so.

    Rows go to the reader's own records, in place of those of the same cases, and as points to `explorer`.
    Use the GPU for nothing else meanwhile: other cells would slow the measured calls and break a graph's capture.
    """
    return Panel(named([experiment])[0] if isinstance(experiment, str) else experiment, explorer)


class Panel(ipywidgets.VBox):
    """What `panel` returns: `run()` starts, `cancel()` stops, `join()` waits; `rows` are those of the last run."""

    def __init__(self, experiment: Experiment, explorer: RooflineExplorer | None = None):
        self.experiment, self.explorer = experiment, explorer
        self.rows, self._notes, self._stop, self._thread = [], [], threading.Event(), None
        gpu = Gpu.here() if timing.has_gpu() else None
        self._cases = list(experiment.cases(gpu, False)) if gpu else []
        quick = list(experiment.cases(gpu, True)) if gpu else []
        self.fields = {group: _choice(group, self._cases, quick) for group in together(self._cases)}
        names = experiment.versions
        self.versions = ipywidgets.SelectMultiple(options=names, value=names, rows=len(names), description="version")
        self.run_button = ipywidgets.Button(description="Run", button_style="primary", disabled=not gpu)
        self.cancel_button = ipywidgets.Button(description="Cancel", disabled=True)
        self.run_button.on_click(lambda _: self.run())
        self.cancel_button.on_click(lambda _: self.cancel())
        self.progress, self.status = ipywidgets.IntProgress(), ipywidgets.HTML()
        self.output = ipywidgets.HTML()
        buttons = [self.run_button, self.cancel_button, self.progress, self.status]
        choices = [*self.fields.values(), self.versions] if gpu else []
        title = ipywidgets.HTML(html.escape(": ".join(filter(None, (experiment.title, _fixed(self._cases))))))
        super().__init__([title, ipywidgets.HBox(choices), ipywidgets.HBox(buttons), self.output])
        self._say("" if gpu else f"No GPU here: nothing can be measured. {results(experiment.name)}")

    def __repr__(self) -> str:
        # Stable, so that a stored output does not change from run to run.
        return f"panel({self.experiment.name!r})"

    def _repr_mimebundle_(self, **kwargs):
        # A page without a kernel shows the line that says why there is nothing to press.
        return super()._repr_mimebundle_(**kwargs) | {"text/html": f'<p class="rooflab-banner">{self.status.value}</p>'}

    def chosen(self) -> Experiment:
        """Return the experiment with the chosen versions and cases only; raise RecordError where none is left."""
        cases = [case for case in self._cases if all(_key(case, group) in c.value for group, c in self.fields.items())]
        if not cases or not self.versions.value:
            raise records.RecordError("nothing to measure: choose at least one version, and values that go together")
        return replace(self.experiment, versions=self.versions.value, cases=lambda gpu, quick: cases)

    def run(self) -> None:
        """Start to measure what is chosen, in a thread; do nothing without a GPU or while a panel is measuring."""
        if self.run_button.disabled:
            return
        if not _MEASURING.acquire(blocking=False):
            self._say("another panel is measuring: cancel it, or wait")
            return
        self._stop.clear()
        self.run_button.disabled, self.cancel_button.disabled = True, False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop before the next chunk of calls; finished cases are kept."""
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the run and return whether it has ended."""
        if self._thread:
            self._thread.join(timeout_s)
        return not (self._thread and self._thread.is_alive())

    def _work(self) -> None:
        self.rows, self._notes = [], []
        self.progress.value, self.output.value = 0, ""
        try:
            said = self._measure()
        except timing.Cancelled:
            said = "cancelled; finished cases are kept"
        except Exception as error:  # a thread's traceback would go unseen
            said = f"stopped: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        finally:
            _MEASURING.release()
            self.run_button.disabled, self.cancel_button.disabled = False, True
        self._say(said)

    def _measure(self) -> str:
        """Measure what is chosen, show each case when it is done, and return what to say at the end."""
        _own_graph_trees()
        root, say, cancelled = records.own_root(), self._notes.append, self._stop.is_set
        campaign = Campaign([self.chosen()], root=root, again=True, say=say, cancelled=cancelled)
        self.progress.max, begun = len(campaign), time.monotonic()
        self._say(f"0 of {len(campaign)} cases")
        for done, _ in enumerate(campaign.steps(), 1):
            self.rows, self.progress.value = list(campaign.rows), done
            left_s = timing.seconds_left(done, len(campaign), time.monotonic() - begun)
            self._say(f"{done} of {len(campaign)} cases, about {left_s:.0f} s left")
            self.output.value = self._table(campaign)
            if self.explorer:
                self._move_dots(campaign)
            if self._stop.is_set():
                raise timing.Cancelled
        where = f"; their dots belong to the device {campaign.device}" if self.explorer else ""
        return f"{len(self.rows)} rows kept in {root / campaign.device}{where}"

    def _say(self, text: str) -> None:
        self.status.value = html.escape(text)

    def _table(self, campaign: Campaign) -> str:
        book = records.find(BOOK_DEVICE, self.experiment.name)
        lines = []
        for row in self.rows:
            demand, time_s = self.experiment.demand(row["case"], row["version"]), row["time_s"]
            rates = si(demand.flop / time_s, "op/s"), si(demand.traffic["hbm"] / time_s, "B/s")
            bound = paper_bound(campaign, demand, row["case"])
            share = f"{bound.time_s / time_s:.1%}" if bound else "–"
            same = [each for each in book.select(row["version"], **row["case"]) if not is_stale(each)] if book else []
            in_book = si(same[0]["time_s"], "s") if same else "–"
            times = si(time_s, "s"), si(row["wall_s"], "s")
            lines.append((self._name(row["case"]), row["version"], *times, *rates, share, in_book))
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(each)}</td>" for each in line) + "</tr>" for line in lines)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def _name(self, case: dict) -> str:
        """Return the part of a case that differs from the others, such as `M, N, K = 4096`."""
        return "; ".join(f"{', '.join(group)} = {_label(_key(case, group))}" for group in self.fields)

    def _move_dots(self, campaign: Campaign) -> None:
        """Put the new rows among the explorer's points, in place of the same ones of an earlier run."""
        sliders = {slider["name"] for slider in self.explorer.scenario["sliders"]}
        run, points = campaign.run, {}
        for row in self.rows:
            case, demand = row["case"], self.experiment.demand(row["case"], row["version"])
            if not demand.flop:
                continue  # a copy has no place on axes of FLOP
            point = Point(
                label=" ".join(("yours:", self.experiment.name, row["version"], self._name(case))).strip(),
                device=campaign.device,
                dtype=case.get("dtype", self.explorer.dtype),
                intensity=demand.intensity_flop_per_byte(),
                flop_per_s=demand.flop / row["time_s"],
                source=f"measured here, {run['measured'][:10]}, PyTorch {run['versions']['torch']}",
                when={name: case[name] for name in sliders & case.keys()},
            )
            points[point.label, point.device] = vars(point)
        others = [each for each in self.explorer.points if (each["label"], each["device"]) not in points]
        self.explorer.points = [*others, *points.values()]


def together(cases: list[dict]) -> list[tuple[str, ...]]:
    """Return the fields that vary, in groups: one that another decides shares its control.

    >>> together([{"dtype": "bf16", "op": "mm", "M": n, "N": n} for n in (1, 2)])
    [('M', 'N')]
    """
    groups: list[list[str]] = []
    for name in dict.fromkeys(name for case in cases for name in case):
        if len({case.get(name) for case in cases}) == 1:
            continue
        for group in groups:
            if len({_key(case, group) for case in cases}) == len({_key(case, [*group, name]) for case in cases}):
                group.append(name)
                break
        else:
            groups.append([name])
    return [tuple(group) for group in groups]


def paper_bound(campaign: Campaign, demand: Demand, case: dict) -> Bound | None:
    """Return the bound on paper, or None where none holds: no such roof, or bytes that may come from L2."""
    known, dtype = hardware.devices().get(campaign.device), case.get("dtype", "bf16")
    if known is None or dtype not in known.dtypes("tensor"):
        return None
    try:
        bound = Roofline.of(known, dtype).bound(demand)
    except RooflineError:
        return None
    cached = not beyond_l2(demand, campaign.gpu)
    return None if bound.roof.kind == MEMORY and cached else bound


def _key(case: dict, group: Iterable[str]) -> tuple:
    return tuple(case.get(name) for name in group)


def _label(key: tuple) -> str:
    """Return the values of a group, once where they are all the same."""
    texts = [f"{each:,}" if isinstance(each, int) else str(each) for each in key]
    return texts[0] if len(set(texts)) == 1 else " · ".join(texts)


def _fixed(cases: list[dict]) -> str:
    """Return the fields that are the same in all cases, with their values."""
    first = cases[0].items() if cases else ()
    return ", ".join(f"{name} = {_label((v,))}" for name, v in first if all(case.get(name) == v for case in cases))


def _choice(group: tuple[str, ...], cases: list[dict], quick: list[dict]) -> ipywidgets.SelectMultiple:
    """Return the control of a group of fields; at first it stands on what takes seconds."""
    keys = list(dict.fromkeys(_key(case, group) for case in cases))
    start = [key for key in keys if key in {_key(case, group) for case in quick}] or keys[:1]
    options = [(_label(key), key) for key in keys]
    rows, name = min(len(keys), 8), ", ".join(group)
    return ipywidgets.SelectMultiple(options=options, value=start, rows=rows, description=name)


def _own_graph_trees() -> None:
    """Give this thread the state that torch.compile keeps for CUDA graphs, where PyTorch does not.

    PyTorch before 2.13 makes it only in the thread that imports the module; torch._dynamo.reset() then fails in others
    (pytorch/pytorch#123177).
    """
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees and not hasattr(trees.local, "tree_manager_containers"):
        trees.local.tree_manager_containers = {}
        trees.local.tree_manager_locks = defaultdict(threading.Lock)
