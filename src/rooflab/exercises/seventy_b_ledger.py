"""Exercise 2: the ledger of one decode step of a 70B model: parameters, FLOP, bytes, time and capacity.

Right answers come from the ledger and from `rooflab.step` where they have them.
Each known wrong formula stands beside the reason that a reader gets for it; `g` holds the arguments of the question.
"""

import dataclasses
import math
import random

from ..ledger import COMPUTE_TIME, INTENSITY, MEMORY_TIME
from ..lesson import ArrayQuestion, Judged, Question, TrueFalse
from .decode_intensity import (
    common_flop,
    draw_sizes,
    sized_step,
    step_flop_reasons,
    step_intensity,
    token_flop,
    weight_count,
)

LLAMA_2_70B = {"layers": 80, "d_model": 8192, "kv_dim": 1024, "mlp_dim": 28672, "vocabulary": 32000}
LLAMA_3_70B = LLAMA_2_70B | {"vocabulary": 128256}
_BATCHES = range(2, 513)
_CONTEXTS = range(512, 32_769)

# (a) parameters ------------------------------------------------------------------------------------------------------

PARTS = ("attention", "mlp", "head", "embedding")


def _attention(layers, d_model, kv_dim, full=2, narrow=2):
    return layers * d_model * (full * d_model + narrow * kv_dim)


def _parts(layers, d_model, kv_dim, mlp_dim, vocabulary) -> dict:
    """Return {part: (right count, {reason: wrong count})}."""
    table = vocabulary * d_model
    attention, mlp = _attention(layers, d_model, kv_dim), layers * 3 * d_model * mlp_dim
    return {
        "attention": (
            attention,
            {
                "with grouped-query attention K and V are d_model x kv_dim; you gave them d_model columns": (
                    4 * layers * d_model**2
                ),
                "the projection of the output, d_model x d_model, is missing": (
                    _attention(layers, d_model, kv_dim, full=1)
                ),
                "only Q and O are d_model x d_model: K and V are missing": (
                    _attention(layers, d_model, kv_dim, narrow=0)
                ),
                "K and V have a matrix each": _attention(layers, d_model, kv_dim, narrow=1),
                "that is one layer; there are `layers` of them": attention // layers,
                "a parameter is one number; 2 per parameter is its FLOP or its bytes": 2 * attention,
            },
        ),
        "mlp": (
            mlp,
            {
                "a gated MLP has three matrices: gate, up and down; you counted two": layers * 2 * d_model * mlp_dim,
                "8 d^2 is two matrices of d x 4 d; this MLP has three of d_model x mlp_dim": 8 * layers * d_model**2,
                "that is one layer; there are `layers` of them": mlp // layers,
                "a parameter is one number; 2 per parameter is its FLOP or its bytes": 2 * mlp,
            },
        ),
        "head": (
            table,
            {
                "the LM head is a matrix of d_model x vocabulary, apart from the embedding": 0,
                "the LM head is there once, not in each layer": layers * table,
                "embedding and head have a key each": 2 * table,
            },
        ),
        "embedding": (
            table,
            {
                "the embedding table is held, although a step reads only a row of it per token": 0,
                "the embedding table is there once, not in each layer": layers * table,
                "the table has a row for each token of the vocabulary": d_model,
            },
        ),
    }


def _parameter_problems(answer):
    pick = random.Random(0).choice
    given = [LLAMA_2_70B, *(draw_sizes(pick) for _ in range(11))]
    returned = [answer(**sizes) for sizes in given]
    for got in returned:
        if not isinstance(got, dict) or set(got) != set(PARTS):
            yield f"return a dict with the keys {', '.join(PARTS)}; got {got!r}"
            return
    for part in PARTS:
        counts = [(got[part], *_parts(**sizes)[part]) for got, sizes in zip(returned, given, strict=True)]
        if all(got == right for got, right, _ in counts):
            continue
        for reason in counts[0][2]:
            if all(got == wrong[reason] for got, _, wrong in counts):
                yield f"{part}: {reason}"
        got, right, _ = counts[0]
        yield (
            f"{part}: for Llama-2-70B you returned {got!r}, which is not what its matrices hold"
            if got != right
            else (f"{part}: right for Llama-2-70B, and wrong for other sizes; use the arguments")
        )


parameters = Judged("parameters", tuple(LLAMA_2_70B), _parameter_problems)


# (b) FLOP ------------------------------------------------------------------------------------------------------------


def _flop(batch, **g):
    return batch * token_flop(**g)


def _common(batch, **g):
    return batch * common_flop(**g)


step_flop = Question(
    "FLOP of a step",
    "FLOP",
    {"batch": 1, "context": 4096, **LLAMA_2_70B},
    lambda pick: {"batch": pick(_BATCHES), "context": pick(_CONTEXTS), **draw_sizes(pick)},
    lambda **g: sized_step(**g).flop,
    step_flop_reasons(_flop, _common)
    | {"the batch is missing: every sequence gets a token": lambda **g: _flop(**g | {"batch": 1})},
)


# (c) weights ---------------------------------------------------------------------------------------------------------


def _weights(bytes_per_weight, tables=(2, 1), **sizes):
    """Return (bytes held, bytes read); `tables` counts the matrices of the vocabulary's size in each."""
    return tuple(bytes_per_weight * weight_count(**sizes, tables=number) for number in tables)


def _narrower(bytes_per_weight, layers, d_model, kv_dim, mlp_dim, vocabulary):
    """Return the bytes with two matrices in the MLP."""
    missing = bytes_per_weight * layers * d_model * mlp_dim
    sizes = {"layers": layers, "d_model": d_model, "kv_dim": kv_dim, "mlp_dim": mlp_dim, "vocabulary": vocabulary}
    return tuple(whole - missing for whole in _weights(bytes_per_weight, **sizes))


weight_bytes = ArrayQuestion(
    "bytes of the weights",
    "byte",
    {**LLAMA_2_70B, "bytes_per_weight": 2},
    lambda pick: {**draw_sizes(pick), "bytes_per_weight": pick((0.5, 1, 2, 4))},
    _weights,
    {
        "a step does not read the embedding table, only one row of it per token": lambda **g: _weights(
            **g, tables=(2, 2)
        ),
        "the embedding table is held too, next to the LM head": lambda **g: _weights(**g, tables=(1, 1)),
        "return the bytes held first, then the bytes read": lambda **g: _weights(**g, tables=(1, 2)),
        "the LM head is missing: it is held, and it is read": lambda **g: _weights(**g, tables=(1, 0)),
        "you counted elements, not bytes": lambda **g: _weights(**g | {"bytes_per_weight": 1}),
        "that holds for 2 bytes per weight only; use bytes_per_weight": (
            lambda **g: _weights(**g | {"bytes_per_weight": 2})
        ),
        "return bytes, not GB": lambda **g: tuple(each / 1e9 for each in _weights(**g)),
        "return bytes, not GiB": lambda **g: tuple(each / 2**30 for each in _weights(**g)),
        "a gated MLP has three matrices; you counted two": _narrower,
        "K and V have kv_dim columns, not d_model": lambda **g: _weights(**g | {"kv_dim": g["d_model"]}),
    },
)

in_gb_and_gib = ArrayQuestion(
    "GB and GiB",
    "",
    {"n_bytes": 137_951_707_136},
    lambda pick: {"n_bytes": pick(range(10**9, 10**12))},
    lambda n_bytes: (n_bytes / 1e9, n_bytes / 2**30),
    {
        "1 GiB is 2^30 bytes; you divided by 10^9 twice": lambda n_bytes: (n_bytes / 1e9, n_bytes / 1e9),
        "1 GB is 10^9 bytes; you divided by 2^30 twice": lambda n_bytes: (n_bytes / 2**30, n_bytes / 2**30),
        "return GB first, then GiB": lambda n_bytes: (n_bytes / 2**30, n_bytes / 1e9),
        "a GiB is the larger unit, so the number of GiB is the smaller one": (
            lambda n_bytes: (n_bytes / 1e9, n_bytes / 1e9 * (2**30 / 1e9))
        ),
        "1 GiB is 2^30 bytes, not 10^6 x 2^10": lambda n_bytes: (n_bytes / 1e9, n_bytes / 1e6 / 2**10),
        "the argument is in bytes already, not in bits": lambda n_bytes: (n_bytes / 8e9, n_bytes / 8 / 2**30),
    },
)


# (d) the cache -------------------------------------------------------------------------------------------------------


def _cache(layers, query_heads, kv_heads, head_dim, bytes_per_kv, tensors=2):
    return tensors * layers * kv_heads * head_dim * bytes_per_kv


def _draw_cache(pick) -> dict:
    kv_heads = pick((1, 2, 5, 8))
    heads = {"query_heads": kv_heads * pick((4, 7, 8)), "kv_heads": kv_heads, "head_dim": pick((64, 80, 128))}
    return {"layers": pick((16, 32, 40, 80)), **heads, "bytes_per_kv": pick((1, 2, 4))}


cache_per_token = Question(
    "cache per token",
    "byte",
    {"layers": 80, "query_heads": 64, "kv_heads": 8, "head_dim": 128, "bytes_per_kv": 2},
    _draw_cache,
    _cache,
    {
        "only kv_heads keys and values are kept: with query_heads you have the cache of multi-head attention": (
            lambda **g: _cache(**g | {"kv_heads": g["query_heads"]})
        ),
        "the cache holds K and V; you counted one of them": lambda **g: _cache(**g, tensors=1),
        "you counted elements, not bytes": lambda **g: _cache(**g | {"bytes_per_kv": 1}),
        "that holds for 2 bytes per cached element only; use bytes_per_kv": lambda **g: _cache(
            **g | {"bytes_per_kv": 2}
        ),
        "every layer has its own cache; multiply by layers": lambda **g: _cache(**g | {"layers": 1}),
        "a cached head has head_dim elements": lambda **g: _cache(**g | {"head_dim": 1}),
        "every KV head has its own keys and values; multiply by kv_heads": lambda **g: _cache(**g | {"kv_heads": 1}),
        "return bytes, not KiB": lambda **g: _cache(**g) / 1024,
        "return bytes, not kB": lambda **g: _cache(**g) / 1000,
    },
)


def _share(batch, context, weight_bytes, cache_bytes_per_token):
    cache = batch * context * cache_bytes_per_token
    return cache / (weight_bytes + cache)


cache_share = Question(
    "share of the cache",
    "",
    {"batch": 1, "context": 4096, "weight_bytes": 137.4e9, "cache_bytes_per_token": 327680},
    lambda pick: {
        "batch": pick(_BATCHES),
        "context": pick(_CONTEXTS),
        "weight_bytes": pick((13.2e9, 15e9, 137.4e9)),
        "cache_bytes_per_token": pick((131072, 327680, 524288)),
    },
    _share,
    {
        "that is cache over weights; the share is cache over weights and cache together": (
            lambda **g: _share(**g) / (1 - _share(**g))
        ),
        "that is the share of the weights": lambda **g: 1 - _share(**g),
        "return a fraction, not a percentage": lambda **g: 100 * _share(**g),
        "the batch is missing, or each sequence reads the weights again; one read serves them all": (
            lambda **g: _share(**g | {"batch": 1})
        ),
        "the cache has an entry for each token of the context": lambda **g: _share(**g | {"context": 1}),
        "the cache holds K and V already; do not double it": (
            lambda **g: _share(**g | {"cache_bytes_per_token": 2 * g["cache_bytes_per_token"]})
        ),
    },
)


# (e) intensity -------------------------------------------------------------------------------------------------------


def _common_over(unit, batch, context, bytes_per_weight, bytes_per_kv, cache=1, **sizes):
    """Return n(4 L d + 8 d^2) over the bytes held, which were divided by `unit` and taken for 10^9."""
    kv = 2 * batch * context * sizes["layers"] * sizes["kv_dim"] * bytes_per_kv * cache
    held = bytes_per_weight * weight_count(**sizes, tables=2)
    return INTENSITY(F=batch * common_flop(**sizes, context=context), Q=(held + kv) / unit * 1e9)


intensity = dataclasses.replace(
    step_intensity,
    example={"batch": 1, "context": 4096, **LLAMA_2_70B, "bytes_per_weight": 2, "bytes_per_kv": 2},
    wrong=step_intensity.wrong
    | {
        "n(4 L d + 8 d^2) leaves out the FLOP of the MLP, and a number of GiB stands for GB in the bytes": (
            lambda **g: _common_over(2**30, **g)
        ),
        "n(4 L d + 8 d^2) leaves out the FLOP of the MLP, and the bytes are the weights held, without the cache": (
            lambda **g: _common_over(1e9, **g, cache=0)
        ),
        "a number of GiB stands for GB in the bytes": lambda **g: step_intensity.right(**g) * 2**30 / 1e9,
    },
)


# (f) time ------------------------------------------------------------------------------------------------------------


def _rate(batch, flop, moved_bytes, gpus, peak_flop_per_s, bytes_per_s, total=max, shared=(True, True)):
    """Return tokens per second; `shared` says whether the GPUs divide the FLOP, and the bytes."""
    compute, memory = (gpus if each else 1 for each in shared)
    times = COMPUTE_TIME(F=flop / compute, P=peak_flop_per_s), MEMORY_TIME(Q=moved_bytes / memory, beta=bytes_per_s)
    return batch / total(times)


def _draw_rate(pick) -> dict:
    moved = pick((15.4e9, 138.8e9, 223e9))
    machine = pick(((989.4e12, 3.35e12), (312e12, 2.039e12), (2250e12, 7.7e12)))
    flop = moved * machine[0] / machine[1] * pick((0.004, 0.3, 0.8, 1.5, 6))
    rest = {"peak_flop_per_s": machine[0], "bytes_per_s": machine[1]}
    return {"batch": pick(_BATCHES), "flop": flop, "moved_bytes": moved, "gpus": pick((2, 4, 8)), **rest}


tokens_per_s = Question(
    "tokens per second",
    "tokens/s",
    {
        "batch": 1,
        "flop": 148.2e9,
        "moved_bytes": 138.8e9,
        "gpus": 2,
        "peak_flop_per_s": 989.4e12,
        "bytes_per_s": 3.35e12,
    },
    _draw_rate,
    _rate,
    {
        "a step brings a token to each sequence: multiply by the batch": lambda **g: _rate(**g | {"batch": 1}),
        "the GPUs divide the FLOP and the bytes: each does its share at the same time": (
            lambda **g: _rate(**g | {"gpus": 1})
        ),
        "the bytes are divided too: each GPU reads its share of the weights and of the cache": (
            lambda **g: _rate(**g, shared=(True, False))
        ),
        "the FLOP are divided too": lambda **g: _rate(**g, shared=(False, True)),
        "compute and traffic overlap at best: take the larger time, not the sum": lambda **g: _rate(**g, total=sum),
        "both have to be over: take the larger time, not the smaller": lambda **g: _rate(**g, total=min),
        "the bytes are missing: compute alone does not bound a step at a small batch": (
            lambda **g: _rate(**g, total=lambda times: times[0])
        ),
        "the FLOP are missing: at a large batch they may take longer": (
            lambda **g: _rate(**g, total=lambda times: times[1])
        ),
        "that is the time of a step; turn it over, and multiply by the batch": (lambda **g: g["batch"] / _rate(**g)),
        "that is the time per token; turn it over": lambda **g: 1 / _rate(**g),
    },
)


# (g) capacity --------------------------------------------------------------------------------------------------------


def _fit(gpus, capacity_bytes, weight_bytes, cache_bytes_per_token, context, whole=math.floor, least=0):
    left = gpus * capacity_bytes - weight_bytes
    return max(least, whole(left / (cache_bytes_per_token * context)))


def _draw_fit(pick) -> dict:
    weights, cache = pick(((16e9, 131072), (138e9, 327680), (141e9, 327680), (13.5e9, 524288)))
    machine = {"gpus": pick((1, 2, 4, 8)), "capacity_bytes": pick((80e9, 141e9))}
    return {**machine, "weight_bytes": weights, "cache_bytes_per_token": cache, "context": pick((1024, 4096, 32768))}


most_sequences = Question(
    "sequences that fit",
    "sequences",
    {"gpus": 2, "capacity_bytes": 80e9, "weight_bytes": 138e9, "cache_bytes_per_token": 327680, "context": 4096},
    _draw_fit,
    _fit,
    {
        "the weights take memory too": lambda **g: _fit(**g | {"weight_bytes": 0}),
        "the GPUs share one copy of the weights, a part on each; you gave every GPU a copy": (
            lambda **g: _fit(**g | {"weight_bytes": g["gpus"] * g["weight_bytes"]})
        ),
        "the caches are divided over all GPUs; you filled one": lambda **g: _fit(**g | {"gpus": 1}),
        "the answer is negative where the weights alone do not fit; then no sequence fits": (
            lambda **g: _fit(**g, least=-math.inf)
        ),
        "a sequence fits whole or not at all: round down": lambda **g: _fit(**g, whole=float),
        "the last sequence does not fit whole: round down, not up": lambda **g: _fit(**g, whole=math.ceil),
        "that is a number of tokens; each sequence has `context` of them": lambda **g: _fit(**g | {"context": 1}),
        "the capacity is in bytes already; you scaled it from GB to GiB": (
            lambda **g: _fit(**g | {"capacity_bytes": g["capacity_bytes"] * 2**30 / 1e9})
        ),
    },
)


# (h) verdict ---------------------------------------------------------------------------------------------------------

verdict = TrueFalse(
    "verdict",
    {
        "a": (
            "At batch 1 and context 4096, the MLP does more than half of the FLOP of the step.",
            True,
            "its three matrices are four fifths of the weights that are read, and take 76 % of the FLOP",
        ),
        "b": (
            "138.0 GB and 128.5 GiB are the same number of bytes.",
            True,
            "a GiB is 2^30 bytes, 7.4 % more than a GB of 10^9 bytes",
        ),
        "c": (
            "The step streams the embedding table as it streams the LM head.",
            False,
            "the lookup reads one row per token; the LM head multiplies with its whole matrix",
        ),
        "d": (
            "The causal mask halves the FLOP of attention in a decode step.",
            False,
            "the one new token may see every cached token, so nothing is masked",
        ),
        "e": (
            "Grouped-query attention makes the cache 8 times smaller than multi-head attention would.",
            True,
            "8 KV heads are kept in place of 64",
        ),
        "f": (
            "Grouped-query attention also makes the FLOP of the scores 8 times fewer.",
            False,
            "each of the 64 query heads still meets every cached token",
        ),
        "g": (
            "Two GPUs in tensor parallelism double the intensity of the step.",
            False,
            "each does half of the FLOP on half of the bytes",
        ),
        "h": (
            "At batch 256 and context 4096, most bytes of the step are cache.",
            True,
            "the caches are 71 % of the bytes",
        ),
        "i": (
            "At batch 1, a GPU with twice the matrix peak and the same memory lowers the time bound of the step.",
            False,
            "at 1.07 FLOP/byte the bytes bind, and they have not changed",
        ),
    },
)
