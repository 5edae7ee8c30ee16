"""A step of a model on a device as one report: the numbers in base units, and the same numbers as text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from . import ledger, records, step
from .hardware import device
from .models import Model, load
from .roofline import COMPUTE, MEMORY, Roofline
from .step import Step, StepError
from .units import si

KINDS = ("weights", "cache", "activations")
MOST_CHUNKS = 1000


def report(
    source: str,
    *,
    device_id: str = "h100-sxm",
    as_type: str | None = None,
    batch: int = 1,
    context: int = 4096,
    new_tokens: int | None = None,
    prefill: bool = False,
    chunk: int | None = None,
    gpus: int = 1,
    attention: str = "fused",
    measured: bool = False,
    **formats: str,
) -> dict:
    """Return the numbers of one step, or of a prefill, on one GPU, in FLOP, byte and second; `text` prints them.

    `formats` are the fields of `step.Precision`.
    """
    precision = step.Precision(**formats)
    gpu = device(device_id)
    roofline = Roofline.of(gpu, precision.math, measured=measured)
    model = load(source, as_type=as_type)
    how = {"batch": batch, "precision": precision, "gpus": gpus, "attention": attention}
    if prefill:
        if new_tokens is not None:
            raise StepError("new_tokens is for decoding; leave it out, or leave out --prefill")
        step.decode(model, context=context, **how)  # what is wrong with the options, before the chunks are counted
        if type(chunk) is int and 0 < chunk * MOST_CHUNKS < context:
            least = math.ceil(context / MOST_CHUNKS)
            raise StepError(f"chunk is {chunk}, which makes more than {MOST_CHUNKS} chunks; give at least {least}")
        steps = step.prefill(model, prompt=context, chunk=chunk, **how)
    else:
        if chunk is not None:
            raise StepError("chunk is for a prompt; add --prefill")
        new_tokens = 1 if new_tokens is None else new_tokens
        steps = [step.decode(model, context=context, new_tokens=new_tokens, **how)]
    operations = _operations(steps, roofline)
    rates = {roof.key: roof for roof in roofline.roofs if roof.kind in (COMPUTE, MEMORY)}
    remarks = (gpu.note, *(memory.note for memory in gpu.memories if memory.level == "hbm"))
    notes = [f"note: {remark}" for remark in remarks if remark]
    if "vector" not in rates:
        notes.append(f"{gpu.title} has no vector peak on record: norms and activations are bounded by memory alone")
    if model.moe:
        picks = ledger.WORKLOADS["experts"].assumes.partition(":")[0]
        notes.append(f"note: the bounds assume that {picks}; tokens that pick alike read fewer weights")
    if model.max_context and context > model.max_context:
        notes.append(f"warning: context is {context}; the model was trained for {model.max_context} tokens")
    ridge_tokens = ledger.LINEAR_RIDGE_TOKENS(
        P=rates["tensor"].rate, beta=rates["hbm"].rate, b_w=precision.weight_bytes
    )
    return {
        "model": {"id": model.id, "title": model.title, "source": model.source, "parameters": model.parameters}
        | {"layers": model.n_layers, "window": model.window, "window_layers": model.window_layers}
        | {"heads": model.h, "experts": model.moe and model.moe.experts, "top_k": model.moe and model.moe.top_k}
        | {"max_context": model.max_context, "assumed": list(model.assumed)},
        "device": {"id": gpu.id, "title": gpu.title, "roofs": [vars(rates[key]) for key in rates if key != "l2"]},
        "options": {"batch": batch, "context": context, "new_tokens": new_tokens, "prefill": prefill, "chunk": chunk}
        | {"gpus": gpus, "attention": attention, "measured": measured}
        | dataclasses.asdict(precision),
        "notes": notes,
        "operations": operations,
        "totals": _totals(steps, roofline, sum(row["time_s"] for row in operations), prefill),
        "memory": _memory(model, gpu, precision, context, gpus),
        "linear_ridge_tokens": ridge_tokens,
        "expert_ridge_tokens": ridge_tokens * model.moe.experts / model.moe.top_k if model.moe else None,
    }


def _bound(roofline: Roofline, demand: ledger.Demand):
    """Return the bound on `demand`, without the work of units that have no roof."""
    have = {roof.key for roof in roofline.roofs if roof.kind == COMPUTE}
    work = {unit: flop if unit in have else 0 for unit, flop in demand.work.items()}
    return roofline.bound(dataclasses.replace(demand, work=work))


def _operations(steps: Sequence[Step], roofline: Roofline) -> list[dict]:
    """Return a row for each operation; the chunks of a prefill are added up, and may be bound by several roofs."""
    rows: dict[str, dict] = {}
    for each in (operation for part in steps for operation in part.operations):
        bound = _bound(roofline, each.demand())
        zero = dict.fromkeys(("times", "flop", *(f"{kind}_bytes" for kind in KINDS), "bytes", "time_s"), 0)
        row = rows.setdefault(each.title, {"title": each.title, **zero, "bound_by": []})
        row["times"] += each.times
        row["flop"] += each.flop
        for kind in KINDS:
            row[f"{kind}_bytes"] += each.moved(kind)
        row["bytes"] += each.moved()
        row["time_s"] += each.times * bound.time_s
        if bound.roof.label not in row["bound_by"]:
            row["bound_by"].append(bound.roof.label)
    for row in rows.values():
        row["intensity_flop_per_byte"] = row["flop"] / row["bytes"]
    return list(rows.values())


def _totals(steps: Sequence[Step], roofline: Roofline, time_s: float, prefill: bool) -> dict:
    together = [_bound(roofline, each.demand()) for each in steps]
    flop, moved = sum(each.flop for each in steps), sum(each.moved() for each in steps)
    tokens = sum(each.tokens for each in steps)
    return {
        "steps": len(steps),
        "tokens": tokens,
        "flop": flop,
        "vector_flop": sum(each.vector_flop for each in steps),
        **{f"{kind}_bytes": sum(each.moved(kind) for each in steps) for kind in KINDS},
        "bytes": moved,
        "intensity_flop_per_byte": flop / moved,
        "time_s": time_s,
        "overlapped_time_s": sum(each.time_s for each in together),
        "bound_by": list(dict.fromkeys(each.roof.label for each in together)),
        "tokens_per_s": tokens / time_s,
        "time_to_first_token_s": time_s if prefill else None,
        "link_bytes": sum(each.link_bytes for each in steps),
    }


def _memory(model: Model, gpu, precision: step.Precision, context: int, gpus: int) -> dict:
    """Return what the model holds, and what fits into `gpus` devices, by what a driver reported where that is known."""
    weights, stated = step.weight_bytes(model, precision), gpu.capacity_bytes()
    record = records.find(gpu.id, "bandwidth")
    reported = record.runs[-1].get("memory_bytes") if record else None
    capacity = reported or stated
    return {
        "cache_bytes_per_token": step.cache_bytes_per_token(model, precision),
        "cache_bytes_per_sequence": step.cache_bytes(model, context, precision),
        "weight_bytes": weights,
        "capacity_bytes": capacity,
        "capacity_basis": "measured" if reported else "paper",
        "vendor_capacity_bytes": stated,
        "least_gpus": step.least_gpus(model, capacity, precision),
        "most_sequences": step.most_sequences(model, capacity, context, precision, gpus),
    }


# As text -------------------------------------------------------------------------------------------------------------

_RATE = {COMPUTE: "FLOP/s", MEMORY: "B/s"}


def _binary(size: float, most: str = "TiB") -> str:
    """Return bytes with a binary prefix, `most` at most.

    >>> _binary(131072), _binary(137953296384), _binary(5 * 2**20, "KiB"), _binary(512)
    ('128 KiB', '128.5 GiB', '5120 KiB', '512 B')
    """
    names = ["B", "KiB", "MiB", "GiB", "TiB"]
    power = 0
    while size >= 1024 and names[power] != most:
        size, power = size / 1024, power + 1
    return f"{si(size)} {names[power]}"


def _both(size: float) -> str:
    return f"{si(size, 'B')} ({_binary(size)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _lined_up(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows with their columns lined up, the first and the last to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        inner = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *inner, last]).rstrip())
    return lines


def text(found: dict) -> str:
    """Return a report as lines of text; kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024."""
    return "\n".join([*_head(found), "", *_table(found), "", *_lined_up(_summary(found))])


def _head(found: dict) -> list[str]:
    model, gpu, asked = found["model"], found["device"], found["options"]
    roofs = ", ".join(f"{roof['label']} {si(roof['rate'], _RATE[roof['kind']])}" for roof in gpu["roofs"])
    if asked["prefill"]:
        what = "prefill" + (f" in chunks of {asked['chunk']}" if asked["chunk"] else "")
    else:
        what = f"decode, {_count(asked['new_tokens'], 'new token')} per sequence"
    shared = f"one of {asked['gpus']} GPUs in tensor parallelism: the counts and times are those of one"
    return [
        f"{model['title']}: {model['parameters']:,} parameters; source: {model['source']}",
        *(f"assumed: {sentence}" for sentence in model["assumed"]),
        f"{what}; batch {asked['batch']}, context {asked['context']}, attention {asked['attention']}",
        ", ".join(f"{key} {asked[key]}" for key in (*KINDS, "head", "math")),
        f"{gpu['title']}: {roofs}",
        *([shared] if asked["gpus"] > 1 else []),
        *found["notes"],
    ]


def _table(found: dict) -> list[str]:
    rows = [["operation", "times", "FLOP", *KINDS, "FLOP/byte", "time", "bound by"]]
    # The total is a sum of times: no one roof binds it.
    for row in [*found["operations"], {"title": "total", "times": "", "bound_by": []} | _sums(found["totals"])]:
        sizes = [row[f"{kind}_bytes"] for kind in KINDS]
        cells = [si(row["flop"], "FLOP") if row["flop"] else "-", *(si(size, "B") if size else "-" for size in sizes)]
        cells += [si(row["intensity_flop_per_byte"]), si(row["time_s"], "s")]
        rows.append([row["title"], str(row["times"]), *cells, " or ".join(row["bound_by"])])
    return _lined_up(rows)


def _sums(totals: dict) -> dict:
    kept = {key: totals[key] for key in totals if key != "bound_by"}
    return kept | {"flop": totals["flop"] + totals["vector_flop"]}


def _summary(found: dict) -> list[tuple[str, str]]:
    totals, memory, asked = found["totals"], found["memory"], found["options"]
    context, per_step = asked["context"], _count(totals["tokens"], "token")
    # A measured ceiling can be beaten: a copy, for one, is slower than a read.
    least, most = ("about", "about") if asked["measured"] else ("at least", "at most")
    rate = f"{most} {si(totals['tokens_per_s'], 'tokens/s')}: {per_step} in this time"
    if not asked["prefill"] and asked["new_tokens"] > 1:
        rate += ", if every new token is accepted"
    overlapped = f"{least} {si(totals['overlapped_time_s'], 's')} if all operations of a step overlapped"
    rows = [
        ("FLOPs", f"{si(totals['flop'], 'FLOP')} in matrix products, {si(totals['vector_flop'], 'FLOP')} besides"),
        ("bytes", f"{si(totals['bytes'], 'B')}: " + ", ".join(f"{k} {si(totals[f'{k}_bytes'], 'B')}" for k in KINDS)),
        ("intensity", f"{si(totals['intensity_flop_per_byte'])} FLOP/byte"),
        ("time", f"{least} {si(totals['time_s'], 's')}: the sum of the operations' bounds"),
        ("", f"{overlapped}, bound by {' or '.join(totals['bound_by'])}"),
        ("rate", rate),
    ]
    if asked["prefill"]:
        rows.append(("first token", f"after {least} {si(totals['time_to_first_token_s'], 's')}"))
    if asked["gpus"] > 1:
        rows.append(("link", f"{si(totals['link_bytes'], 'B')} out and as many in; not part of the times"))
    model, per_token = found["model"], f"{_binary(memory['cache_bytes_per_token'], 'KiB')} per token of context"
    if model["window"]:
        per_token += f" ({model['window_layers']} of {model['layers']} layers keep the last {model['window']} tokens)"
    meets = f"counting weights only, a linear layer meets it at {si(found['linear_ridge_tokens'])} tokens per step"
    rows.append(("ridge", meets))
    if experts := found["expert_ridge_tokens"]:
        rows.append(("", f"each routed expert at {si(experts)}: a token picks {model['top_k']} of {model['experts']}"))
    return [
        *rows,
        ("KV cache", f"{per_token}, {_both(memory['cache_bytes_per_sequence'])} at {context} tokens"),
        ("weights", f"{_both(memory['weight_bytes'])} in all"),
        ("memory", _capacity(memory)),
        ("fits", _fits(memory, asked["gpus"], context, model["heads"])),
    ]


def _capacity(memory: dict) -> str:
    each = f"{_both(memory['capacity_bytes'])} on each GPU"
    if memory["capacity_basis"] == "paper":
        return f"{each}, as its vendor states it"
    stated = si(memory["vendor_capacity_bytes"], "B")
    return f"{each}, as the driver reported it in the book's record; its vendor states {stated}"


def _fits(memory: dict, gpus: int, context: int, heads: int) -> str:
    if memory["capacity_basis"] == "measured":
        basis = "by the book's record of this GPU"
    else:
        basis = "by the vendor's figure"
        if memory["capacity_bytes"] % 2**30:  # in GB; one in GiB is no more in a driver's words
            basis += "; a driver may report up to 7 % more"
    least = memory["least_gpus"]
    if least is None:
        return f"no: the weights need more GPUs than can share {_count(heads, 'head')} evenly, {basis}"
    if least > gpus:
        return f"no: the weights need at least {_count(least, 'GPU')} that share the heads evenly, {basis}"
    most = _count(memory["most_sequences"], "sequence")
    return f"at most {most} of {context} tokens beside the weights, {basis}"
