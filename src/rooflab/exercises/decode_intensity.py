"""Exercise 1: the intensity of decode, by linear layer, by attention and by step, and what a faster unit changes.

Right answers come from the ledger and from `rooflab.step`.
Each known wrong formula stands beside the reason that a reader gets for it; `g` holds the arguments of the question.
"""

import dataclasses

from .. import timing
from ..ledger import COMPUTE_TIME, INTENSITY, MEMORY_TIME, RIDGE, WORKLOADS
from ..lesson import Question, TrueFalse
from ..models import model
from ..step import Precision, Step, decode

_PEAKS = (121e12, 312e12, 989.4e12, 1978.9e12, 2250e12, 4500e12)
_BANDWIDTHS = (0.3e12, 1.555e12, 2.039e12, 3.35e12, 4.8e12, 7.7e12)
_CONTEXTS = range(512, 100_001)
_BATCHES = range(2, 2049)
_HEAD_DIM = 128


def linear_here(width: int = 4096, batches=(1, 4, 16, 64, 128, 256, 512)) -> dict:
    """Return one linear layer of width x width in bf16, to time on this machine's GPU, by batch; without a GPU none."""
    if not timing.has_gpu():
        return {}
    import torch

    weight = torch.randn(width, width, device="cuda", dtype=torch.bfloat16)
    rows = {batch: torch.randn(batch, width, device="cuda", dtype=torch.bfloat16) for batch in batches}
    return {batch: lambda x=x: torch.nn.functional.linear(x, weight) for batch, x in rows.items()}


def sized_step(layers, d_model, kv_dim, mlp_dim, vocabulary, context, batch=1, precision=None) -> Step:
    """Return the ledger's decode step of a Llama-like model of these sizes, with heads of 128."""
    heads = {"h": d_model // _HEAD_DIM, "h_kv": kv_dim // _HEAD_DIM, "d_h": _HEAD_DIM}
    sizes = {"n_layers": layers, "d": d_model, "d_ff": mlp_dim, "V": vocabulary}
    llama = dataclasses.replace(model("llama-2-7b"), **heads, **sizes)
    return decode(llama, batch=batch, context=context, precision=precision)


def parts_of(name: str, batch: int, context: int) -> list[tuple]:
    """Return (FLOP, bytes) of all linear layers, then of all attention, in the ledger's step of a built-in model."""
    operations = decode(model(name), batch=batch, context=context).operations
    kinds = [[each for each in operations if each.workload == kind] for kind in ("linear", "attention")]
    return [(sum(each.flop for each in some), sum(each.moved() for each in some)) for some in kinds]


def draw_sizes(pick) -> dict:
    """Return the sizes of a Llama-like model whose widths are multiples of a head of 128."""
    d_model = pick((2048, 4096, 5120, 8192))
    widths = {"d_model": d_model, "kv_dim": d_model // pick((1, 4, 8)), "mlp_dim": pick((5504, 11008, 14336, 28672))}
    return {"layers": pick((16, 32, 40, 80)), **widths, "vocabulary": pick((32000, 50304, 128256))}


# (a) a linear layer --------------------------------------------------------------------------------------------------


def _linear_flop(batch, d_in, d_out):
    return WORKLOADS["linear"].flop(B=batch, s=1, d_in=d_in, d_out=d_out)


_WIDTHS = (1024, 4096, 5120, 11008, 14336)

linear_flop = Question(
    "FLOP of a linear layer",
    "FLOP",
    {"batch": 1, "d_in": 4096, "d_out": 11008},
    lambda pick: {"batch": pick(_BATCHES), "d_in": pick(_WIDTHS), "d_out": pick(_WIDTHS)},
    _linear_flop,
    {
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _linear_flop(**g) / 2,
        "the batch is missing: each sequence brings a vector of its own": lambda **g: _linear_flop(**g | {"batch": 1}),
        "each output takes d_in multiply-adds, so the two widths multiply": (
            lambda batch, d_in, d_out: 2 * batch * (d_in + d_out)
        ),
        "the layer need not be square: it is d_in wide on one side and d_out on the other": (
            lambda batch, d_in, d_out: 2 * batch * d_in**2
        ),
    },
)


def _linear_bytes(batch, d_in, d_out, bytes_per_weight, bytes_per_activation=0, **changed):
    """Return the bytes of the weights and of the rows; `changed` replaces a count by a wrong one."""
    rows = changed.get("rows", d_in + d_out) * changed.get("sequences", batch)
    return bytes_per_weight * d_in * d_out + bytes_per_activation * rows


def _linear(batch, d_in, d_out, bytes_per_weight):
    return INTENSITY(F=_linear_flop(batch, d_in, d_out), Q=_linear_bytes(batch, d_in, d_out, bytes_per_weight))


linear_intensity = Question(
    "intensity of a linear layer, weights only",
    "FLOP/byte",
    {"batch": 1, "d_in": 4096, "d_out": 11008, "bytes_per_weight": 2},
    lambda pick: {
        "batch": pick(_BATCHES),
        "d_in": pick(_WIDTHS),
        "d_out": pick(_WIDTHS),
        "bytes_per_weight": pick((0.5, 1, 2, 4)),
    },
    _linear,
    {
        "the batch is missing from the FLOP: one read of a weight serves every sequence": (
            lambda **g: _linear(**g | {"batch": 1})
        ),
        "that holds for 2 bytes per weight only; use bytes_per_weight": (
            lambda **g: _linear(**g | {"bytes_per_weight": 2})
        ),
        "you counted elements, not bytes: divide by the bytes per weight": (
            lambda **g: _linear(**g | {"bytes_per_weight": 1})
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _linear(**g) / 2,
        "count the bytes of the weights only; the rows come in the next question": (
            lambda **g: INTENSITY(F=_linear_flop(g["batch"], g["d_in"], g["d_out"]), Q=_linear_bytes(**g) + _rows(**g))
        ),
        "that is bytes per FLOP; turn it over": lambda **g: 1 / _linear(**g),
    },
)


def _rows(batch, d_in, d_out, bytes_per_weight):
    return bytes_per_weight * batch * (d_in + d_out)


def _linear_with_rows(batch, d_in, d_out, bytes_per_weight, bytes_per_activation, **changed):
    moved = _linear_bytes(batch, d_in, d_out, bytes_per_weight, bytes_per_activation, **changed)
    return INTENSITY(F=_linear_flop(batch, d_in, d_out), Q=moved)


def _ledger_linear(batch, d_in, d_out, bytes_per_weight, bytes_per_activation):
    intensity = WORKLOADS["linear"].intensity()
    return intensity(B=batch, s=1, d_in=d_in, d_out=d_out, b_w=bytes_per_weight, b_a=bytes_per_activation)


linear_with_rows = Question(
    "intensity of a linear layer, rows included",
    "FLOP/byte",
    {"batch": 256, "d_in": 4096, "d_out": 11008, "bytes_per_weight": 2, "bytes_per_activation": 2},
    lambda pick: {
        "batch": pick(_BATCHES),
        "d_in": pick(_WIDTHS),
        "d_out": pick(_WIDTHS),
        "bytes_per_weight": pick((0.5, 1, 2, 4)),
        "bytes_per_activation": pick((1, 2, 4)),
    },
    _ledger_linear,
    {
        "the input and output rows are missing: they grow with the batch": lambda **g: _linear_with_rows(**g, rows=0),
        "the output rows are missing: they are written": lambda **g: _linear_with_rows(**g, rows=g["d_in"]),
        "the input rows are missing: they are read": lambda **g: _linear_with_rows(**g, rows=g["d_out"]),
        "each sequence has its own rows; multiply them by the batch": lambda **g: _linear_with_rows(**g, sequences=1),
        "weights have bytes_per_weight and rows have bytes_per_activation; you used one for both": (
            lambda **g: _linear_with_rows(**g | {"bytes_per_activation": g["bytes_per_weight"]})
        ),
        "you counted elements, not bytes": (
            lambda **g: _linear_with_rows(**g | {"bytes_per_weight": 1, "bytes_per_activation": 1})
        ),
        "each sequence reads the weights again; one read serves them all": (
            lambda **g: _linear_with_rows(**g | {"batch": 1})
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _linear_with_rows(**g) / 2,
    },
)


# (b) attention -------------------------------------------------------------------------------------------------------


def _attention(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv, bytes_per_activation=0, **changed):
    """Return the intensity; `changed` replaces a count by a wrong one."""
    flop = batch * changed.get("products", 2) * 2 * changed.get("scores", query_heads) * context * head_dim
    caches = changed.get("caches", batch) * changed.get("tensors", 2)
    rows = changed.get("rows", 2) * batch * query_heads * head_dim
    moved = bytes_per_kv * caches * context * kv_heads * head_dim + bytes_per_activation * rows
    return INTENSITY(F=flop, Q=moved)


def _cache_only(**g):
    """Return FLOP per byte of the cache, both from the ledger."""
    names = {"batch": "B", "context": "L", "query_heads": "h", "kv_heads": "h_kv", "head_dim": "d_h"}
    values = {symbol: g[name] for name, symbol in names.items()} | {"b_kv": g["bytes_per_kv"], "s": 1, "c": 1}
    work = WORKLOADS["attention"]
    return INTENSITY(F=work.flop(**values), Q=work.parts["cache"](**values))


def _ledger_attention(batch, context, query_heads, kv_heads, head_dim, bytes_per_kv, bytes_per_activation):
    sizes = {"B": batch, "L": context, "h": query_heads, "h_kv": kv_heads, "d_h": head_dim, "s": 1, "c": 1}
    return WORKLOADS["attention"].intensity()(**sizes, b_kv=bytes_per_kv, b_a=bytes_per_activation)


def _draw_attention(pick) -> dict:
    kv_heads = pick((1, 2, 5, 8))
    heads = {"query_heads": kv_heads * pick((1, 4, 7, 8)), "kv_heads": kv_heads, "head_dim": pick((64, 80, 128))}
    return {"batch": pick(_BATCHES), "context": pick(_CONTEXTS), **heads, "bytes_per_kv": pick((1, 2, 4))}


_HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128}

attention_intensity = Question(
    "intensity of decode attention, cache only",
    "FLOP/byte",
    {"batch": 1, "context": 4096, **_HEADS, "bytes_per_kv": 2},
    _draw_attention,
    _cache_only,
    {
        "it does not grow with the batch: every sequence reads its own cache": (
            lambda **g: _attention(**g) * g["batch"]
        ),
        "it does not grow with the context: each cached token brings its bytes and its FLOP": (
            lambda **g: _attention(**g) * g["context"]
        ),
        "a cached head is read once for all query heads that share it: the ratio query_heads / kv_heads is missing": (
            lambda **g: _attention(**g, scores=g["kv_heads"])
        ),
        "that holds for 2 bytes per cached element only; use bytes_per_kv": (
            lambda **g: _attention(**g | {"bytes_per_kv": 2})
        ),
        "you counted elements, not bytes: divide by bytes_per_kv": lambda **g: _attention(**g | {"bytes_per_kv": 1}),
        "a factor 2 is missing: a multiply-add is 2 FLOP, or one of two products is left out": (
            lambda **g: _attention(**g, products=1)
        ),
        "a factor 2 is too much: K and V are both read": lambda **g: _attention(**g, tensors=1),
        "you have the ratio of the heads the wrong way round": (
            lambda **g: _attention(**g) * (g["kv_heads"] / g["query_heads"]) ** 2
        ),
        "that is bytes per FLOP; turn it over": lambda **g: 1 / _attention(**g),
    },
)

attention_exact = Question(
    "intensity of decode attention, queries and outputs included",
    "FLOP/byte",
    {"batch": 1, "context": 64, **_HEADS, "bytes_per_kv": 2, "bytes_per_activation": 2},
    lambda pick: {
        **_draw_attention(pick),
        "context": pick((16, 64, 256, 1024)),
        "bytes_per_activation": pick((1, 2, 4)),
    },
    _ledger_attention,
    {
        "that is the limit for a long context: queries and outputs are bytes too": lambda **g: _attention(**g, rows=0),
        "the outputs are missing: they are as large as the queries": lambda **g: _attention(**g, rows=1),
        "queries and outputs have query_heads heads, not kv_heads": (
            lambda **g: _attention(**g, rows=2 * g["kv_heads"] / g["query_heads"])
        ),
        "the cache has bytes_per_kv and the rows have bytes_per_activation; you used one for both": (
            lambda **g: _attention(**g | {"bytes_per_activation": g["bytes_per_kv"]})
        ),
        "each sequence has its own cache, as it has its own query": lambda **g: _attention(**g, caches=1),
        "each query head meets every cached token: the scores have query_heads heads, not kv_heads": (
            lambda **g: _attention(**g, scores=g["kv_heads"])
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP, or one of two products is left out": (
            lambda **g: _attention(**g, products=1)
        ),
        "you counted elements, not bytes": (
            lambda **g: _attention(**g | {"bytes_per_kv": 1, "bytes_per_activation": 1})
        ),
    },
)


# (c) a whole step ----------------------------------------------------------------------------------------------------


def token_flop(layers, d_model, kv_dim, mlp_dim, vocabulary, context, **changed):
    """Return the FLOP of a step for one sequence; `changed` replaces a count by a wrong one."""
    projections, mlp = 2 * d_model * (d_model + kv_dim), changed.get("matrices", 3) * d_model * mlp_dim
    scores = changed.get("scores", 4 * context * d_model)
    return layers * (2 * (projections + mlp) + scores) + 2 * changed.get("heads", 1) * vocabulary * d_model


def common_flop(layers, d_model, context, **others):
    """Return n(4 L d + 8 d^2), the common wrong count: no MLP, no LM head, and K and V as wide as Q."""
    return layers * (4 * context * d_model + 8 * d_model**2)


def step_flop_reasons(flop=token_flop, common=common_flop) -> dict:
    """Return the known wrong counts of a step's FLOP by reason; exercise 2 has them too, with a batch."""
    return {
        "n(4 L d + 8 d^2) leaves out the MLP, which does most of the FLOP, and the LM head, and takes K and V as wide "
        "as Q": common,
        "the MLP is missing, and so is the LM head": lambda **g: flop(**g, matrices=0, heads=0),
        "the MLP is missing: its three matrices do most of the FLOP": lambda **g: flop(**g, matrices=0),
        "this MLP has three matrices: gate, up and down": lambda **g: flop(**g, matrices=2),
        "the LM head is missing: it is a linear layer of d_model x vocabulary": lambda **g: flop(**g, heads=0),
        "the embedding multiplies nothing: one row of the table is looked up": lambda **g: flop(**g, heads=2),
        "K and V have kv_dim columns, not d_model": lambda **g: flop(**g | {"kv_dim": g["d_model"]}),
        "the products with the cached K and V are missing": lambda **g: flop(**g, scores=0),
        "each query head meets every cached token, so those products take 4 L d_model FLOP, not 4 L kv_dim": (
            lambda **g: flop(**g, scores=4 * g["context"] * g["kv_dim"])
        ),
        "the products with the cache take 4 L d_model FLOP: there are two, and a causal mask halves neither, since "
        "the new token sees every cached one": lambda **g: flop(**g, scores=2 * g["context"] * g["d_model"]),
        "L^2 is prefill: here one new token meets L cached ones": (
            lambda **g: flop(**g, scores=4 * g["context"] ** 2 * g["d_model"])
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: flop(**g) / 2,
        "that is one layer; there are `layers` of them": lambda **g: flop(**g | {"layers": 1}),
    }


LLAMA_2_7B = {"layers": 32, "d_model": 4096, "kv_dim": 4096, "mlp_dim": 11008, "vocabulary": 32000}

step_flop = Question(
    "FLOP of a step per token",
    "FLOP",
    {**LLAMA_2_7B, "context": 4096},
    lambda pick: {**draw_sizes(pick), "context": pick(_CONTEXTS)},
    lambda **g: sized_step(**g).flop,
    step_flop_reasons(),
)


def weight_count(layers, d_model, kv_dim, mlp_dim, vocabulary, tables=1):
    """Return how many weights the layers and `tables` matrices of the vocabulary's size have."""
    return layers * (2 * d_model * (d_model + kv_dim) + 3 * d_model * mlp_dim) + tables * vocabulary * d_model


def _step(batch, context, bytes_per_weight, bytes_per_kv, count=token_flop, **g):
    """Return the intensity; the keys of `changed` in `g` replace a count by a wrong one."""
    changed = {name: g.pop(name) for name in ("tables", "caches", "tensors", "flop_changes") if name in g}
    flop = batch * count(**g, context=context, **changed.get("flop_changes", {}))
    cache = changed.get("tensors", 2) * g["layers"] * context * g["kv_dim"] * changed.get("caches", batch)
    weights = weight_count(**g, tables=changed.get("tables", 1))
    return INTENSITY(F=flop, Q=bytes_per_weight * weights + bytes_per_kv * cache)


_FORMATS = {1: "fp8", 2: "bf16", 4: "fp32"}


def _ledger_step(batch, context, bytes_per_weight, bytes_per_kv, **sizes):
    """Return the ledger's FLOP over the bytes of its linear layers' weights and of the cache it reads."""
    stored = Precision(
        weights=_FORMATS[bytes_per_weight], cache=_FORMATS[bytes_per_kv], head=_FORMATS[bytes_per_weight]
    )
    found = sized_step(**sizes, context=context, batch=batch, precision=stored)
    kinds = {"linear": "weights", "attention": "cache"}
    moved = sum(each.moved(kinds[each.workload]) for each in found.operations if each.workload in kinds)
    return INTENSITY(F=found.flop, Q=moved)


def _draw_step(pick) -> dict:
    rest = {"bytes_per_weight": pick((1, 2, 4)), "bytes_per_kv": pick((1, 2))}
    return {"batch": pick(_BATCHES), "context": pick(_CONTEXTS), **draw_sizes(pick), **rest}


step_intensity = Question(
    "intensity of a step",
    "FLOP/byte",
    {"batch": 1, "context": 4096, **LLAMA_2_7B, "bytes_per_weight": 2, "bytes_per_kv": 2},
    _draw_step,
    _ledger_step,
    {
        "n(4 L d + 8 d^2) leaves out the FLOP of the MLP, whose weights are in the bytes": (
            lambda **g: _step(**g, count=common_flop)
        ),
        "n(4 L d + 8 d^2) leaves out the FLOP of the MLP and of the LM head; of the two, the bytes hold only the MLP": (
            lambda **g: _step(**g, count=common_flop, tables=0)
        ),
        "n(4 L d + 8 d^2) leaves out the FLOP of the MLP, and the bytes hold all weights, the embedding table too": (
            lambda **g: _step(**g, count=common_flop, tables=2)
        ),
        "the MLP is missing from the FLOP, although its weights are in the bytes": (
            lambda **g: _step(**g, flop_changes={"matrices": 0})
        ),
        "the embedding table is not read: one row of it is looked up for each token": lambda **g: _step(**g, tables=2),
        "the weights of the LM head are read too": lambda **g: _step(**g, tables=0),
        "the products with the cached K and V are missing from the FLOP": (
            lambda **g: _step(**g, flop_changes={"scores": 0})
        ),
        "the cache is missing from the bytes": lambda **g: _step(**g, caches=0),
        "the cache holds K and V; you counted one of them": lambda **g: _step(**g, tensors=1),
        "each sequence has its own cache; its bytes must grow with the batch": lambda **g: _step(**g, caches=1),
        "K and V have kv_dim columns, not d_model": lambda **g: _step(**g | {"kv_dim": g["d_model"]}),
        "the batch is missing, or each sequence reads the weights again; one read serves them all": (
            lambda **g: _step(**g | {"batch": 1})
        ),
        "you counted elements, not bytes": lambda **g: _step(**g | {"bytes_per_weight": 1, "bytes_per_kv": 1}),
        "weights have bytes_per_weight and the cache has bytes_per_kv; you used one for both": (
            lambda **g: _step(**g | {"bytes_per_kv": g["bytes_per_weight"]})
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _step(**g) / 2,
    },
)


# (d) the time bound --------------------------------------------------------------------------------------------------


def _part_times_s(parts, peak_flop_per_s, bytes_per_s) -> list[tuple]:
    return [(COMPUTE_TIME(F=flop, P=peak_flop_per_s), MEMORY_TIME(Q=moved, beta=bytes_per_s)) for flop, moved in parts]


def _bound_s(parts, peak_flop_per_s, bytes_per_s, each=max, total=sum):
    return total(each(times) for times in _part_times_s(parts, peak_flop_per_s, bytes_per_s))


def _bound_of_totals_s(**g):
    return max(map(sum, zip(*_part_times_s(**g), strict=True)))


def _draw_parts(pick) -> dict:
    machine = {"peak_flop_per_s": pick(_PEAKS), "bytes_per_s": pick(_BANDWIDTHS)}
    ridge = RIDGE(P=machine["peak_flop_per_s"], beta=machine["bytes_per_s"])
    parts = []
    # From far below the ridge to far above it, and near it, where a faster machine changes the roof that binds.
    for shares in ((0.01, 0.7, 1.3, 8), (0.003, 0.02, 0.9), (0.05, 0.6, 1.7)):
        moved = pick((134e6, 2.1e9, 3.4e9, 13.2e9))
        parts.append((moved * ridge * pick(shares), moved))
    return {"parts": parts, **machine}


_LAYERS = {"parts": [(13.2e9, 13.2e9), (2.1e9, 2.1e9)], "peak_flop_per_s": 989.4e12, "bytes_per_s": 3.35e12}

time_bound = Question(
    "time bound of a step",
    "s",
    _LAYERS,
    _draw_parts,
    _bound_s,
    {
        "the parts run one after another: take the larger time of each part, then add; you took the totals first": (
            _bound_of_totals_s
        ),
        "compute and traffic of a part overlap at best: take the larger time, not the sum": (
            lambda **g: _bound_s(**g, each=sum)
        ),
        "both have to be over: take the larger time of a part, not the smaller": lambda **g: _bound_s(**g, each=min),
        "the parts run one after another: add their times, not the longest alone": lambda **g: _bound_s(**g, total=max),
        "the traffic is missing": lambda **g: _bound_s(**g, each=lambda times: times[0]),
        "the FLOP are missing: a part above the ridge is bound by compute": (
            lambda **g: _bound_s(**g, each=lambda times: times[1])
        ),
    },
)


def _gain(parts, peak_flop_per_s, bytes_per_s, peak_factor, bandwidth_factor, bound=_bound_s):
    before = bound(parts=parts, peak_flop_per_s=peak_flop_per_s, bytes_per_s=bytes_per_s)
    faster = {"peak_flop_per_s": peak_flop_per_s * peak_factor, "bytes_per_s": bytes_per_s * bandwidth_factor}
    return before / bound(parts=parts, **faster)


gain = Question(
    "gain of a faster machine",
    "x",
    {**_LAYERS, "peak_factor": 2, "bandwidth_factor": 1},
    lambda pick: {**_draw_parts(pick), "peak_factor": pick((1, 2, 4)), "bandwidth_factor": pick((1, 1.5, 2, 4))},
    _gain,
    {
        "a higher peak helps only the parts above the ridge": lambda **g: g["peak_factor"],
        "a higher bandwidth helps only the parts below the ridge": lambda **g: g["bandwidth_factor"],
        "the factors do not multiply: each part gains from the roof that binds it": (
            lambda **g: g["peak_factor"] * g["bandwidth_factor"]
        ),
        "the larger factor helps only the parts that its roof binds": (
            lambda **g: max(g["peak_factor"], g["bandwidth_factor"])
        ),
        "the smaller factor is not always what is left": lambda **g: min(g["peak_factor"], g["bandwidth_factor"]),
        "you took the totals; the parts run one after another, each with a roof of its own": (
            lambda **g: _gain(**g, bound=_bound_of_totals_s)
        ),
        "that is the time after over the time before; a gain is the inverse": lambda **g: 1 / _gain(**g),
    },
)


# (e) the crossing batch ----------------------------------------------------------------------------------------------


def _crossing(peak_flop_per_s, bytes_per_s, bits_per_weight):
    return RIDGE(P=peak_flop_per_s, beta=bytes_per_s) * bits_per_weight / 8 / 2


crossing_batch = Question(
    "crossing batch",
    "sequences",
    {"peak_flop_per_s": 989.4e12, "bytes_per_s": 3.35e12, "bits_per_weight": 16},
    lambda pick: {
        "peak_flop_per_s": pick(_PEAKS),
        "bytes_per_s": pick(_BANDWIDTHS),
        "bits_per_weight": pick((4, 4.125, 8, 16, 32)),
    },
    _crossing,
    {
        "that is the ridge; the batch equals it only for 16 bits per weight": (
            lambda **g: _crossing(**g | {"bits_per_weight": 16})
        ),
        "the bandwidth is in bytes: a weight has bits_per_weight / 8 of them": lambda **g: _crossing(**g) * 8,
        "smaller weights reach the ridge at a smaller batch; you divided by the bytes per weight": (
            lambda **g: _crossing(**g) * (16 / g["bits_per_weight"]) ** 2
        ),
        "a factor 2 is missing: a multiply-add is 2 FLOP": lambda **g: _crossing(**g) * 2,
        "you divided the bandwidth by the peak; the ridge is the peak over the bandwidth": (
            lambda **g: _crossing(g["bytes_per_s"], g["peak_flop_per_s"], g["bits_per_weight"])
        ),
    },
)


# (f) verdict ---------------------------------------------------------------------------------------------------------

verdict = TrueFalse(
    "verdict",
    {
        "a": (
            "Decode is always bandwidth-bound.",
            False,
            "above the crossing batch the linear layers are compute-bound, and attention in which 128 heads share "
            "one cache comes near the ridge",
        ),
        "b": (
            "At batch 1 and in bf16, doubling the matrix peak of an H100 SXM leaves the time bound of a decode step "
            "as it is.",
            True,
            "every part is far below the ridge, so its bytes set its time",
        ),
        "c": (
            "Paging, which keeps the cache in blocks anywhere in memory, reduces the bytes that a step reads.",
            False,
            "it wastes less capacity, so more sequences fit; a step still reads every cached token of each sequence",
        ),
        "d": (
            "FP8 helps only prefill.",
            False,
            "in decode at a small batch, 8-bit weights and cache halve the bytes, and the bytes set the time",
        ),
        "e": (
            "When a step checks s proposed tokens of each sequence at once, as speculative decoding does, the "
            "intensity of the linear layers is s times as high, counting weights only.",
            True,
            "the s tokens share one read of each weight, as s sequences would",
        ),
        "f": (
            "Grouped-query attention raises the intensity of attention in decode.",
            True,
            "the cache shrinks by query_heads / kv_heads, and the FLOP stay",
        ),
        "g": (
            "A larger batch raises the intensity of attention in decode.",
            False,
            "every sequence brings its own cache, so FLOP and bytes grow alike",
        ),
        "h": (
            "At context 4096 in bf16, a decode step of Llama-2-7B reaches the ridge of an H100 SXM in total when the "
            "batch is large enough.",
            False,
            "the caches come to outweigh the weights, and the intensity of the step stays below 7.2 FLOP/byte",
        ),
        "i": (
            "A step whose total intensity is below the ridge gains nothing from a higher peak.",
            False,
            "its linear layers may be compute-bound while its attention waits for bytes; the times add",
        ),
    },
)
