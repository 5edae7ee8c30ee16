"""The command line: what a model needs of a GPU; measure on this machine's GPU, list, show and compare records."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from . import records
from .timing import TimingError
from .units import si

NO_GPU = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for an error, 2 without a GPU, 130 after an interrupt."""
    parser = argparse.ArgumentParser(prog="rooflab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="time experiments on this machine's GPU and keep the rows")
    measure.add_argument("experiment", nargs="*", help="names from `rooflab list`; all of them if none is given")
    measure.add_argument("--quick", action="store_true", help="a few cases of each, in about a minute")
    measure.add_argument("--counters", action="store_true", help="also read the GPU's counters with ncu, if permitted")
    measure.add_argument("--out", type=Path, help="folder of the records (default: your own, see `rooflab list`)")
    commands.add_parser("list", help="the experiments, and the records that are there")
    show = commands.add_parser("show", help="the rows of one record")
    show.add_argument("experiment")
    show.add_argument("--device", default=None, help="a device with records; yours if there is one, else the book's")
    compare = commands.add_parser("compare", help="your rows beside another device's, as ratios")
    compare.add_argument("mine", help="a device with records of yours, or a folder of records")
    compare.add_argument("other", help="a device with records, such as h200-sxm")
    _add_model(commands)
    chosen = parser.parse_args(arguments)
    run = {"measure": _measure, "list": _list, "show": _show, "compare": _compare, "model": _model}[chosen.command]
    try:
        return run(chosen)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TimingError) as error:  # what this package raises
        print(f"rooflab: {error}", file=sys.stderr)
        return 1


def _whole(text: str) -> int | str:
    """Return a whole number, or the text for the step to refuse in its own words."""
    try:
        return int(text)
    except ValueError:
        return text


def _add_model(commands) -> None:
    from .step import STORED_BYTES

    formats = f"{', '.join(STORED_BYTES)}; default: bf16"
    model = commands.add_parser("model", help="FLOPs, bytes and time bound of one step of a model on a device")
    model.add_argument("config", help="a built-in model such as llama-2-7b, a config.json, or a folder with one")
    model.add_argument(
        "--device", default="h100-sxm", metavar="ID", help="default: h100-sxm; an unknown name lists them all"
    )
    model.add_argument("--batch", type=_whole, default=1, metavar="N", help="sequences; default: 1")
    model.add_argument("--context", type=_whole, default=4096, metavar="N", help="tokens per sequence; default: 4096")
    model.add_argument("--new-tokens", type=_whole, metavar="N", help="new tokens per sequence, as in speculation")
    model.add_argument("--prefill", action="store_true", help="read a prompt of --context tokens instead of decoding")
    model.add_argument("--chunk", type=_whole, metavar="N", help="with --prefill: tokens per step")
    for name in ("weights", "cache", "activations", "head"):
        model.add_argument(
            f"--{name}", default="bf16", metavar="FORMAT", help=f"number format of the {name}: {formats}"
        )
    model.add_argument("--math", default="bf16", metavar="DTYPE", help="the matrix units' data type; default: bf16")
    model.add_argument("--gpus", type=_whole, default=1, metavar="T", help="GPUs in tensor parallelism; default: 1")
    model.add_argument(
        "--attention", default="fused", metavar="fused|apart", help="one kernel or three; default: fused"
    )
    model.add_argument("--as", dest="as_type", metavar="FAMILY", help="read the config as one of this model_type")
    model.add_argument("--measured", action="store_true", help="measured roofs in place of those on paper")
    model.add_argument("--json", action="store_true", help="the numbers as JSON, in FLOP, byte and second")


def _model(chosen) -> int:
    from .report import report, text

    options = {key: value for key, value in vars(chosen).items() if key not in ("command", "config", "device", "json")}
    found = report(chosen.config, device_id=chosen.device, **options)
    print(json.dumps(found, indent=1) if chosen.json else text(found))
    return 0


def _measure(chosen) -> int:
    from . import experiments, timing

    plan = experiments.named(chosen.experiment)
    if not timing.has_gpu():
        print(
            "rooflab: no CUDA GPU here, so nothing was measured; the book's records are in `rooflab list`",
            file=sys.stderr,
        )
        return NO_GPU
    from tqdm import tqdm

    root = chosen.out or records.own_root()
    campaign = experiments.Campaign(plan, root=root, quick=chosen.quick, counters=chosen.counters, say=tqdm.write)
    print(f"{campaign.run['gpu']}: {len(campaign)} cases, records in {root / campaign.device}")
    try:
        with tqdm(total=len(campaign), unit="case", dynamic_ncols=True) as bar:
            for name, _ in campaign.steps():
                bar.set_description(name)
                bar.update()
    except KeyboardInterrupt:
        print("\nrooflab: stopped; every finished case is kept, the same command goes on from here", file=sys.stderr)
        return 130
    return 1 if campaign.failed else 0


def _roots() -> list[tuple[str, Path]]:
    return [("yours", records.own_root()), ("the book's", records.BOOK)]


def _list(chosen) -> int:
    from .experiments import EXPERIMENTS

    for name, experiment in EXPERIMENTS.items():
        print(f"{name:16} {experiment.title}; versions: {', '.join(experiment.versions)}")
    for whose, root in _roots():
        for device in records.devices_with_records(root):
            names = ", ".join(sorted(path.stem for path in (root / device).glob("*.json")))
            print(f"records, {whose}: {device}: {names} ({root / device})")
    return 0


def _found(device: str | None, experiment: str, *, book_first: bool = False) -> records.Record | None:
    """Return a record, the reader's own before the book's or after, or None; `h200` stands for h200-sxm."""
    for _, root in sorted(_roots(), key=lambda pair: (pair[1] == records.BOOK) != book_first):
        for each in records.devices_with_records(root):
            if device in (None, each, each.split("-")[0]) and (record := records.find(each, experiment, root)):
                return record
    return None


def _print_columns(rows: list[list[str]], sides: str) -> None:
    """Print cells in columns as wide as their widest; `sides` has < or > for each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, sides, strict=True)
        print("  ".join(f"{cell:{side}{width}}" for cell, width, side in cells).rstrip())


def _case(row: dict) -> str:
    return " ".join(f"{key}={value}" for key, value in row["case"].items())


def _show(chosen) -> int:
    from .experiments import EXPERIMENTS, named

    named([chosen.experiment])
    record = _found(chosen.device, chosen.experiment) or records.load(chosen.device or "h200-sxm", chosen.experiment)
    experiment = EXPERIMENTS[chosen.experiment]
    if record.runs:
        run = record.runs[-1]
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
        print(f"{record.device}: {run['gpu']}, {run['measured']}, driver {run['driver']}\n{versions}")
    else:
        print(f"{record.device}: all was skipped, so there are no rows")
    lines = []
    for row in record.rows:
        demand, time_s = experiment.demand(row["case"], row["version"]), row["time_s"]
        rates = [si(demand.flop / time_s, "op/s"), si(demand.traffic["hbm"] / time_s, "B/s")]
        times = [si(time_s, "s"), "wall " + si(row["wall_s"], "s")]
        lines.append([_case(row), row["version"], *times, *rates, row["cache"]])
    _print_columns(lines, "<<>>>><")
    for skip in record.skipped:
        print(f"skipped {skip['case']} {', '.join(skip['versions'])}: {skip['reason']}")
    return 0


def _compare(chosen) -> int:
    folder = Path(chosen.mine).resolve()  # the name of "." is that of the device, too
    mine_root, mine = (folder.parent, folder.name) if folder.is_dir() else (records.own_root(), chosen.mine)
    lines = []
    for path in sorted((mine_root / mine).glob("*.json")):
        ours, theirs = records.read(path), _found(chosen.other, path.stem, book_first=True)
        if theirs is None:
            print(f"{path.stem}: {chosen.other} has no record of it")
            continue
        other = {(str(row["case"]), row["version"]): row for row in theirs.rows}
        for row in ours.rows:
            if match := other.get((str(row["case"]), row["version"])):
                ratio = f"{match['time_s'] / row['time_s']:.2f}x"
                lines.append([path.stem, _case(row), row["version"], si(row["time_s"], "s"), ratio])
    if not (mine_root / mine).is_dir():
        raise records.RecordError(f"no records of yours for {mine}; see: rooflab list")
    if not lines:
        raise records.RecordError(f"{mine} and {chosen.other} have no case in common; run: rooflab measure")
    _print_columns(lines, "<<<>>")
    print(f"ratio: time on {chosen.other} / time on {mine}; above 1, {mine} is faster")
    return 0


if __name__ == "__main__":
    sys.exit(main())
