"""One step of a model, operation by operation: decode brings a token or a few per sequence, prefill a prompt.

The counts are the ledger's, the sizes the model's. A step's operations run one after another, so its time bound is the
sum of theirs, and no less than that of its totals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass

from .ledger import ALL_REDUCE_BYTES, WORKLOADS, Demand
from .models import FAMILIES, Model
from .units import DTYPE_BYTES

# Bytes per element as stored. A group of weights shares one 16-bit scale (AWQ and GPTQ, groups of 128).
GROUP, SCALE_BYTES = 128, 2
STORED_BYTES = {
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "int8-grouped": 1 + SCALE_BYTES / GROUP,
    "int4-grouped": 0.5 + SCALE_BYTES / GROUP,
}
LEAST = 1e-300


class StepError(ValueError):
    """Raised when a step is asked for that cannot be."""


def _stored(what: str, name: str) -> float:
    if name not in STORED_BYTES:
        raise StepError(f"{what}: unknown format {name!r}; choose from {', '.join(STORED_BYTES)}")
    return STORED_BYTES[name]


@dataclass(frozen=True)
class Precision:
    """How numbers are stored, and in which format the matrix units multiply.

    The embedding and the LM head keep `head`, norms and biases too: quantised models leave them in 16 bits.

    >>> Precision(weights="int4-grouped").weight_bytes
    0.515625
    """

    weights: str = "bf16"
    cache: str = "bf16"
    activations: str = "bf16"
    head: str = "bf16"
    math: str = "bf16"

    def __post_init__(self):
        for name in ("weights", "cache", "activations", "head"):
            _stored(name, getattr(self, name))
        if self.math not in DTYPE_BYTES:
            raise StepError(f"math: unknown format {self.math!r}; choose from {', '.join(DTYPE_BYTES)}")

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight of the layers, shared scales included."""
        return STORED_BYTES[self.weights]


@dataclass(frozen=True)
class Operation:
    """One operation of a step: a workload of the ledger, its values, and how many times the step has it.

    `values` are the ledger's symbols.
    """

    title: str
    workload: str
    values: dict[str, float]
    times: int = 1

    def demand(self) -> Demand:
        """Return what one of them demands."""
        return dataclasses.replace(WORKLOADS[self.workload].demand(**self.values), title=self.title)

    @property
    def flop(self) -> float:
        """FLOPs of all of them."""
        return self.times * WORKLOADS[self.workload].flop(**self.values)

    @property
    def launches(self) -> float:
        """Kernels of all of them."""
        return self.times * WORKLOADS[self.workload].launches(**self.values)

    def moved(self, kind: str | None = None) -> float:
        """Return the bytes of all of them; of "weights", "cache" or "activations" alone, where that is asked for."""
        workload = WORKLOADS[self.workload]
        formula = workload.traffic["hbm"] if kind is None else workload.parts.get(kind)
        return self.times * formula(**self.values) if formula else 0


@dataclass(frozen=True)
class Step:
    """The operations of one step on one GPU; `tokens` are the new tokens of all sequences together."""

    model: Model
    precision: Precision
    tokens: int
    operations: tuple[Operation, ...]
    link_bytes: float

    @property
    def flop(self) -> float:
        """FLOPs of the matrix products: linear layers, attention and LM head."""
        return sum(each.flop for each in self.operations if "tensor" in WORKLOADS[each.workload].work)

    @property
    def vector_flop(self) -> float:
        """FLOPs of norms and activations, which the vector units do."""
        return sum(each.flop for each in self.operations if "vector" in WORKLOADS[each.workload].work)

    @property
    def launches(self) -> float:
        """Kernels, if each operation is one."""
        return sum(each.launches for each in self.operations)

    def moved(self, kind: str | None = None) -> float:
        """Return the bytes through main memory, of one kind where that is asked for."""
        return sum(each.moved(kind) for each in self.operations)

    def intensity_flop_per_byte(self, kinds: Iterable[str] = ("weights", "cache", "activations")) -> float:
        """Return FLOP per byte of these kinds of traffic."""
        return self.flop / sum(self.moved(kind) for kind in kinds)

    def demand(self) -> Demand:
        """Return the totals as one demand: what the step would need if everything overlapped."""
        work = {"tensor": self.flop, "vector": self.vector_flop}
        return Demand(f"{self.model.title}, one step", work, {"hbm": self.moved()}, self.launches)


def _count(name: str, value, least: int = 1, most: int = 10**9) -> int:
    if not (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
        raise StepError(f"{name} is {value!r}; it must be a whole number from {least} to {most}")
    return value


def decode(model: Model, *, batch: int = 1, context: int, new_tokens: int = 1, **how) -> Step:
    """Return the step that brings `new_tokens` to each of `batch` sequences, which then hold `context` tokens.

    With more than one new token, as in speculative decoding, all of them get logits. See `step` for `how`.

    >>> from rooflab.models import model
    >>> round(decode(model("llama-2-7b"), context=4096).flop / 1e9, 3)
    15.362
    """
    return step(model, batch=batch, context=context, new_tokens=new_tokens, logits=new_tokens, **how)


def prefill(model: Model, *, batch: int = 1, prompt: int, chunk: int | None = None, **how) -> list[Step]:
    """Return the steps that read a prompt: one, or one for each chunk; the last token alone gets logits.

    >>> from rooflab.models import model
    >>> len(prefill(model("llama-2-7b"), prompt=4096, chunk=1000))
    5
    """
    prompt = _count("prompt", prompt)
    chunk = min(_count("chunk", chunk if chunk is not None else prompt), prompt)
    ends = [*range(chunk, prompt, chunk), prompt]
    starts = [0, *ends[:-1]]
    return [
        step(model, batch=batch, context=end, new_tokens=end - start, logits=int(end == prompt), **how)
        for start, end in zip(starts, ends, strict=True)
    ]


def step(
    model: Model,
    *,
    batch: int,
    context: int,
    new_tokens: int,
    logits: int,
    causal: bool = True,
    attention: str = "fused",
    latent: bool = True,
    precision: Precision | None = None,
    gpus: int = 1,
) -> Step:
    """Return a step in full: `context` counts the new tokens too, `logits` how many of them get a row of the LM head.

    `attention` is "fused" or "apart" (three kernels); `latent` False expands latent attention's keys and values, as
    the transformers library does. With `gpus` > 1 the counts are of one GPU in tensor parallelism.
    """
    B, L = _count("batch", batch), _count("context", context)
    s = _count("new_tokens", new_tokens, most=L)
    t = _count("gpus", gpus, most=model.h)
    if t not in (choices := gpu_counts(model)):
        heads = f"{model.h} query and {model.h_kv} key-value heads cannot be shared evenly"
        raise StepError(f"gpus is {t}; {heads}; choose from {', '.join(map(str, choices))}")
    if attention not in ("fused", "apart"):
        raise StepError(f"attention is {attention!r}; choose from fused, apart")
    if model.mla and latent and attention == "apart":
        raise StepError("latent attention has no form in three kernels; ask for fused, or for latent=False")
    precision = precision or Precision()
    b = {
        "b_w": STORED_BYTES[precision.weights],
        "b_kv": STORED_BYTES[precision.cache],
        "b_a": STORED_BYTES[precision.activations],
    }
    tokens = {"B": B, "s": s} | b
    found: list[Operation] = []

    def add(title, workload, times=1, **values):
        if times:
            found.append(Operation(title, workload, tokens | values, times))

    def linear(title, d_in, d_out, times=1, **values):
        add(title, "linear", times, d_in=d_in, d_out=d_out, **values)

    kept = {"b_w": STORED_BYTES[precision.head]}
    add("embedding", "embedding", d=model.d, **kept)
    add("norms", "norm", FAMILIES[model.family].norms * model.n_layers + 1, d=model.d)
    add("norm weights and biases", "vectors", w=model.norm_parameters + model.bias_parameters, **kept)
    _attention(model, add, linear, L, s, causal, attention, latent, t)
    _mlp(model, add, linear, t)
    if _count("logits", logits, least=0, most=s):
        linear("LM head", model.d, model.V / t, s=logits, **kept)
    reduced = 2 * model.n_layers * ALL_REDUCE_BYTES(B=B, s=s, d=model.d, b_a=b["b_a"], n_gpu=t)
    return Step(model, precision, B * s, tuple(found), reduced)


def linear_layers(model: Model, merged: bool = False) -> list[tuple[str, int, int]]:
    """Return (input, d_in, d_out) of each linear layer of a dense layer; merged, those of one input are one.

    >>> from rooflab.models import model
    >>> linear_layers(model("llama-2-7b"), merged=True)
    [('x', 4096, 12288), ('heads', 4096, 4096), ('x', 4096, 22016), ('mlp', 11008, 4096)]
    """
    if model.mla or model.moe:
        raise StepError(f"{model.title} has no dense layers of one shape; its operations are in step.decode")
    d, q, kv = model.d, model.h * model.d_h, model.h_kv * model.d_h
    into, up = [q, kv, kv], [model.d_ff] * (2 if model.gated else 1)
    if merged:
        into, up = [sum(into)], [sum(up)]
    return [*(("x", d, n) for n in into), ("heads", q, d), *(("x", d, n) for n in up), ("mlp", model.d_ff, d)]


def linear_stack(model: Model, layers: int, *, batch: int, merged: bool = False, size: float = 2) -> Demand:
    """Return what the linear layers of `layers` dense layers demand in one decode step; `size` is bytes per number."""
    shapes = linear_layers(model, merged)
    values = {"B": batch, "s": 1, "b_w": size, "b_a": size}
    each = [WORKLOADS["linear"].demand(**values, d_in=d_in, d_out=d_out) for _, d_in, d_out in shapes]
    flop, moved = (layers * sum(amounts) for amounts in ((x.flop for x in each), (x.traffic["hbm"] for x in each)))
    return Demand(f"linear layers of {model.title}", {"tensor": flop}, {"hbm": moved}, layers * len(shapes))


def _attention(model: Model, add, linear, L, s, causal, attention, latent, t) -> None:
    n, d, h, h_kv = model.n_layers, model.d, model.h / t, max(model.h_kv / t, 1)
    m = model.mla
    if m is None:
        linear("Q projection", d, h * model.d_h, n)
        linear("K projection", d, h_kv * model.d_h, n)
        linear("V projection", d, h_kv * model.d_h, n)
        add("write to the cache", "cache_write", n, w=2 * h_kv * model.d_h)
        _scores(model, add, L, s, causal, attention, h, h_kv, model.d_h)
        linear("O projection", h * model.d_h, d, n)
        return
    if m.q_rank:
        linear("Q projection, down", d, m.q_rank, n)
        linear("Q projection, up", m.q_rank, h * model.d_h, n)
    else:
        linear("Q projection", d, h * model.d_h, n)
    linear("KV projection, down", d, m.kv_rank + m.d_rope, n)
    add("write to the cache", "cache_write", n, w=m.kv_rank + m.d_rope)
    if latent:
        add("Q into the latent", "linear_per_head", n, h=h, d_in=m.d_nope, d_out=m.kv_rank)
        add("attention", "attention_latent", n, L=L, c=_share(L, s, causal, L), h=h, r_kv=m.kv_rank, d_r=m.d_rope)
        add("O out of the latent", "linear_per_head", n, h=h, d_in=m.kv_rank, d_out=m.d_v)
    else:
        # The cache holds latents, so every step expands those of all L tokens.
        linear("KV projection, up", m.kv_rank, h * (m.d_nope + m.d_v), n, s=L)
        # Keys of d_nope + d_rope and values of d_v: their mean stands for both, since the counts add them.
        _scores(model, add, L, s, causal, attention, h, h, (model.d_h + m.d_v) / 2)
    linear("O projection", h * m.d_v, d, n)


def _scores(model: Model, add, L, s, causal, attention, h, h_kv, d_h) -> None:
    """Add attention; in layers with a window a token sees no more than that many, itself included."""
    for title, times, window in (
        ("attention", model.n_layers - model.window_layers, L),
        ("attention in a window", model.window_layers, model.window or L),
    ):
        seen = min(L, window + s - 1)  # by any of the new tokens
        sizes = {"L": seen, "h": h, "h_kv": h_kv, "d_h": d_h}
        if attention == "apart":
            add(title, "attention_apart", times, **sizes)
        else:
            add(title, "attention", times, c=_share(seen, s, causal, window), **sizes)


def _share(L: int, s: int, causal: bool, window: int) -> float:
    """Return the ledger's c for s new tokens among L: 1 for all pairs, 1/2 for causal, less where a window cuts."""
    if not causal or s == 1:
        return 1
    first = L - s + 1  # what the first new token sees, of L in all
    short = max(0, min(s, window - first))  # tokens that see less than a window
    pairs = short * first + short * (short - 1) // 2 + (s - short) * min(window, L)
    # 0 where every token sees a whole window; the ledger's symbols are positive, and 1 - LEAST is 1.
    return max(1 - (L - pairs / s) / (s - 1), LEAST)


def _mlp(model: Model, add, linear, t) -> None:
    d, matrices, moe = model.d, 3 if model.gated else 2, model.moe
    dense = model.n_layers - (moe.layers if moe else 0)
    groups = [("MLP", dense, model.d_ff / t)]
    if moe and moe.shared_d_ff:
        groups.append(("shared experts", moe.layers, moe.shared_d_ff / t))
    for title, times, width in groups:
        for name in ("gate", "up") if model.gated else ("up",):
            linear(f"{title}, {name}", d, width, times)
        add(f"{title}, activation", "mlp_activation", times, d_ff=width, m=matrices)
        linear(f"{title}, down", width, d, times)
    if moe:
        linear("router", d, moe.experts + moe.shared_gate, moe.layers)
        sizes = {"d": d, "d_ff": moe.d_ff / t, "m": matrices, "n_e": moe.experts, "k_e": moe.top_k}
        add("routed experts", "experts", moe.layers, **sizes)
        add("routed experts, activation", "mlp_activation", moe.layers, d_ff=moe.top_k * moe.d_ff / t, m=matrices)


# Memory --------------------------------------------------------------------------------------------------------------


def weight_bytes(model: Model, precision: Precision | None = None) -> float:
    """Return the bytes of all parameters; embedding, head, norms and biases in the head's format.

    >>> from rooflab.models import model
    >>> weight_bytes(model("llama-2-7b"))
    13476831232
    """
    precision = precision or Precision()
    outside = model.V * model.d * (1 if model.tied else 2)
    outside += model.norm_parameters + model.bias_parameters + model.position_parameters
    inside = (model.parameters - outside) * STORED_BYTES[precision.weights]
    return inside + outside * STORED_BYTES[precision.head]


def cache_bytes_per_token(model: Model, precision: Precision | None = None) -> float:
    """Return the cache's bytes per token of context, all layers; a layer with a window keeps no more than its window.

    >>> from rooflab.models import model
    >>> cache_bytes_per_token(model("llama-2-70b")) / 1024
    320.0
    """
    width = model.mla.kv_rank + model.mla.d_rope if model.mla else 2 * model.h_kv * model.d_h
    return model.n_layers * width * STORED_BYTES[(precision or Precision()).cache]


def cache_bytes(model: Model, context: int, precision: Precision | None = None) -> float:
    """Return the cache's bytes of one sequence of `context` tokens."""
    per_layer = cache_bytes_per_token(model, precision) / model.n_layers
    windowed = min(context, model.window or context)
    return per_layer * ((model.n_layers - model.window_layers) * context + model.window_layers * windowed)


def gpu_counts(model: Model) -> list[int]:
    """Return how many GPUs can share the heads evenly; where there are more than key-value heads, GPUs share one.

    >>> from rooflab.models import model
    >>> gpu_counts(model("gemma-2-9b"))
    [1, 2, 4, 8, 16]
    """
    small = [t for t in range(1, math.isqrt(model.h) + 1) if model.h % t == 0]
    divisors = sorted({*small, *(model.h // t for t in small)})
    return [t for t in divisors if model.h_kv % t == 0 or t % model.h_kv == 0]


def least_gpus(model: Model, capacity_bytes: float, precision: Precision | None = None) -> int | None:
    """Return the fewest GPUs of `capacity_bytes` that share the heads and hold the weights; None if none do.

    >>> from rooflab.models import model
    >>> least_gpus(model("llama-2-70b"), 80e9), least_gpus(model("llama-2-70b"), 30e9)
    (2, 8)
    """
    fewest = weight_bytes(model, precision) / capacity_bytes
    return next((t for t in gpu_counts(model) if t >= fewest), None)


def most_sequences(
    model: Model, capacity_bytes: float, context: int, precision: Precision | None = None, gpus: int = 1
) -> int:
    """Return how many sequences of `context` tokens fit beside the weights; 0 if the weights alone do not.

    `capacity_bytes` is that of one of `gpus` that share the weights evenly. Each keeps its share of the key-value
    heads, one at least; a latent cache cannot be shared.
    """
    left = capacity_bytes - weight_bytes(model, precision) / gpus
    share = 1 if model.mla else max(1 / gpus, 1 / model.h_kv)
    return max(0, math.floor(left / (cache_bytes(model, context, precision) * share)))
