"""A Llama-like decoder in plain PyTorch, one decode step at a time, and the ways to launch that step.

Its shapes come from `models.Model`; it holds real weights, random or those of a transformers model.
"""

from __future__ import annotations

import math
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from . import timing
from .models import FAMILIES, Model, ModelError, load

# Before torch.compile imports Triton: without a GPU, its interpreter must be chosen by then.
try:
    from .kernels import decode, gemv
except ModuleNotFoundError:
    decode = gemv = None  # no Triton here: all other ways work

try:
    import torch
    from torch.nn import functional as F
    from torch.utils._python_dispatch import TorchDispatchMode
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; the decoder needs torch: pip install 'rooflab[gpu]'") from None


class DecoderError(ValueError):
    """Raised when a model, a cache or tokens do not fit the decoder, or a way to launch it is not possible here."""


# Weights -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of one layer, each matrix (d_out, d_in); what multiplies the same input is one matrix.

    `qkv` holds the rows of q, then of k, then of v; `gate_up` those of gate, then of up.
    """

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """All weights of a decoder; `embedding` and `head` are (V, d), one tensor where the model ties them.

    `frequencies` (d_h / 2) are RoPE's angles per position, in fp32; `eps` is added under the root of every norm.
    """

    model: Model
    embedding: torch.Tensor
    layers: list[Layer]
    final_norm: torch.Tensor
    head: torch.Tensor
    frequencies: torch.Tensor
    eps: float

    @classmethod
    def random(
        cls, model: Model, device, dtype, seed: int, layers: int | None = None, theta: float = 500_000.0
    ) -> Weights:
        """Return random weights of the model's shapes, of its first `layers` layers if given.

        `theta` is RoPE's base, which Model does not state; no time depends on it. Raises DecoderError for a model that
        is not Llama-like.
        """
        _require_llama(model)
        if layers is not None and not 1 <= layers <= model.n_layers:
            raise DecoderError(f"layers is {layers}: {model.title} has {model.n_layers}, give 1 to {model.n_layers}")
        generator = torch.Generator(device).manual_seed(seed)

        # Drawn where and as it stays: 8B parameters in fp32 on the way would be 32 GB.
        def normal(*shape, std, mean=0.0):
            return torch.empty(shape, device=device, dtype=dtype).normal_(mean, std, generator=generator)

        # Each output is a sum of d_in products, so 1/sqrt(d_in) keeps its size near that of the inputs. The residual
        # stream then grows as the root of the number of layers, and the norms take that away.
        def matrix(d_out, d_in):
            return normal(d_out, d_in, std=d_in**-0.5)

        d, heads = model.d, model.h * model.d_h
        embedding = matrix(model.V, d)
        stack = [
            Layer(
                attn_norm=normal(d, mean=1.0, std=0.1),
                qkv=matrix(heads + 2 * model.h_kv * model.d_h, d),
                o=matrix(d, heads),
                mlp_norm=normal(d, mean=1.0, std=0.1),
                gate_up=matrix(2 * model.d_ff, d),
                down=matrix(d, model.d_ff),
            )
            for _ in range(layers or model.n_layers)
        ]
        head = embedding if model.tied else matrix(model.V, d)
        exponents = torch.arange(0, model.d_h, 2, device=device, dtype=torch.float32) / model.d_h
        return cls(model, embedding, stack, normal(d, mean=1.0, std=0.1), head, theta**-exponents, eps=1e-5)

    @classmethod
    def from_transformers(cls, network) -> Weights:
        """Return the weights of a transformers LlamaForCausalLM or MistralForCausalLM; merged matrices are copies.

        Raises DecoderError for a model that is not Llama-like.
        """
        config = network.config
        try:
            model = load(config.to_dict())
        except ModelError as error:
            raise DecoderError(str(error)) from error
        _require_llama(model)
        if config.hidden_act != "silu":
            raise DecoderError(f"{model.family} with hidden_act {config.hidden_act!r}: the decoder has only 'silu'")
        rotary = network.model.rotary_emb
        if rotary.rope_type not in ("default", "linear", "llama3"):  # the others scale cos and sin, or change with L
            raise DecoderError(f"rope_type {rotary.rope_type!r}: the decoder knows default, linear and llama3")

        def merged(*modules):
            return torch.cat([module.weight.detach() for module in modules])

        layers = []
        for layer in network.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            layers.append(
                Layer(
                    attn_norm=layer.input_layernorm.weight.detach(),
                    qkv=merged(attention.q_proj, attention.k_proj, attention.v_proj),
                    o=attention.o_proj.weight.detach(),
                    mlp_norm=layer.post_attention_layernorm.weight.detach(),
                    gate_up=merged(mlp.gate_proj, mlp.up_proj),
                    down=mlp.down_proj.weight.detach(),
                )
            )
        embedding = network.model.embed_tokens.weight.detach()
        head = embedding if model.tied else network.lm_head.weight.detach()
        norm = network.model.norm.weight.detach()
        return cls(model, embedding, layers, norm, head, rotary.inv_freq.float(), config.rms_norm_eps)

    def tensors(self) -> list[torch.Tensor]:
        """Return all weights, each tensor once."""
        every = [self.embedding, self.final_norm, self.head]
        every += [tensor for layer in self.layers for tensor in vars(layer).values()]
        return list({id(tensor): tensor for tensor in every}.values())


def _require_llama(model: Model) -> None:
    """Raise DecoderError, naming every difference, unless the model's layers are Llama's."""
    family = FAMILIES[model.family]
    differences = {
        "latent attention (MLA)": model.mla,
        "experts (MoE)": model.moe,
        "a sliding window": model.window,
        "biases": model.bias_parameters,
        "norms of queries and keys": family.qk_norm,
        "learned positions": family.learned_positions,
        "an MLP without a gate": not model.gated,
    }
    found = [name for name, there in differences.items() if there]
    if not found and model.family not in ("llama", "mistral"):
        found = [f"layers of the {model.family} class"]  # scaled embeddings, other norms, other residuals
    if found:
        raise DecoderError(f"{model.title} has {', '.join(found)}: the decoder runs only Llama-like dense models")


# Cache ---------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Cache:
    """Keys and values of earlier tokens, one tensor (B, h_kv, capacity, d_h) per layer, and where the next token goes.

    `position` (1,) int64 lives on the device: a captured graph reads it there at each replay. `at` is the same number
    on the host, for checks that must not wait for the GPU. `cos` and `sin` (capacity, d_h) are RoPE's tables.
    """

    # One tensor per layer, not one for all: torch.compile then writes each in place, without a copy of the whole.
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    cos: torch.Tensor
    sin: torch.Tensor
    position: torch.Tensor
    at: int = 0

    @classmethod
    def empty(cls, weights: Weights, batch: int, capacity: int) -> Cache:
        """Return a cache of zeros for `batch` sequences of up to `capacity` tokens, at position 0."""
        if min(batch, capacity) < 1:
            raise DecoderError(f"a cache for {batch} sequences of {capacity} tokens: give at least 1 of each")
        model, like = weights.model, weights.embedding
        shape = (batch, model.h_kv, capacity, model.d_h)
        # Zeros, since the mask adds minus infinity to a score, and that leaves a NaN of unset memory a NaN.
        k, v = ([torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in weights.layers] for _ in range(2))
        # Angles in fp32, whatever the weights are: bf16 has no number 257.
        positions = torch.arange(capacity, device=like.device, dtype=torch.float32)
        angles = (positions[:, None] * weights.frequencies).repeat(1, 2)  # dimension i turns with i + d_h / 2
        position = torch.zeros(1, dtype=torch.int64, device=like.device)
        return cls(k, v, angles.cos().to(like.dtype), angles.sin().to(like.dtype), position)

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.k[0].shape[0]

    @property
    def capacity(self) -> int:
        """The tokens that fit in each sequence."""
        return self.k[0].shape[2]

    def seek(self, position: int) -> None:
        """Let the next step write at `position`, where all sequences are; raises DecoderError beyond the capacity."""
        if not 0 <= position < self.capacity:
            raise DecoderError(
                f"cache holds {self.capacity} tokens, position {position}: it must be 0 to {self.capacity - 1}, "
                "or make the cache longer"
            )
        self.at = position
        self.position.fill_(position)  # the number travels with the launch: no sync

    def fill(self, seed: int) -> None:
        """Fill all keys and values with random numbers, as after a prompt: a GPU draws less power on zeros."""
        generator = torch.Generator(self.position.device).manual_seed(seed)
        for tensor in (*self.k, *self.v):
            tensor.normal_(generator=generator)

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors of the cache."""
        return [*self.k, *self.v, self.cos, self.sin, self.position]


# The step ------------------------------------------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    """Return x / rms(x) * weight over the last dimension, computed in fp32 as transformers does."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rope(x, cos, sin):
    """Return x (..., d_h) with each pair (i, i + d_h / 2) turned by its angle; cos and sin hold each angle twice."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def step(weights: Weights, cache: Cache, tokens: torch.Tensor, length: int | None = None) -> torch.Tensor:
    """Return the logits (B, V) of one decode step for tokens (B,) int64, written to the cache at `cache.position`.

    `length` is the context with the new token, position + 1. A slice of that length is a view, so attention reads
    what it needs and no mask; but the length is fixed where the step is captured or compiled: one graph per length.
    None attends to the whole capacity under a mask made from the position: one graph for all lengths, which reads the
    empty rest of the cache too.

    The position does not advance: a step may be repeated, as warm-up and timing do. Call `cache.seek` between tokens.
    Raises DecoderError if tokens, cache and length do not fit together.

    >>> tiny = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...         "intermediate_size": 128, "vocab_size": 100}
    >>> weights = Weights.random(load(tiny), "cpu", torch.float32, seed=0)
    >>> cache = Cache.empty(weights, batch=1, capacity=8)
    >>> step(weights, cache, torch.tensor([42]), length=1).shape
    torch.Size([1, 100])
    >>> cache.seek(8)
    Traceback (most recent call last):
    ...
    rooflab.decoder.DecoderError: cache holds 8 tokens, position 8: it must be 0 to 7, or make the cache longer
    """
    # Not in a compiled step: `cache.at` would become a guard, and each position a new compilation.
    if not torch.compiler.is_compiling():
        _require_fit(cache, tokens, length)
    model, B = weights.model, tokens.shape[0]
    h, h_kv, d_h, end = model.h, model.h_kv, model.d_h, cache.capacity if length is None else length
    # No sync below, and no shape that depends on data: a position read by the host would be both.
    cos, sin = cache.cos.index_select(0, cache.position), cache.sin.index_select(0, cache.position)  # (1, d_h)
    x = F.embedding(tokens, weights.embedding)  # (B, d)
    mask = None
    if length is None:
        # Added to the scores. As booleans, SDPA would turn it into this in each layer.
        future = torch.arange(end, device=x.device) > cache.position
        mask = torch.zeros(end, dtype=x.dtype, device=x.device).masked_fill_(future, -math.inf)[None, None, None]
    for layer, keys, values in zip(weights.layers, cache.k, cache.v, strict=True):
        heads = F.linear(rms_norm(x, layer.attn_norm, weights.eps), layer.qkv).view(B, h + 2 * h_kv, d_h)
        qk, v = heads.split((h + h_kv, h_kv), dim=1)
        q, k = rope(qk, cos, sin).split((h, h_kv), dim=1)  # q and k lie side by side: one rotation for both
        keys.index_copy_(2, cache.position, k.unsqueeze(2))
        values.index_copy_(2, cache.position, v.unsqueeze(2))
        # With its heads apart PyTorch takes a kernel that splits the context; grouped as (h_kv, h / h_kv) it took one
        # that does not: one sequence of many tokens then runs on h_kv SMs.
        q = q.unsqueeze(2)  # (B, h, 1, d_h)
        y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], attn_mask=mask, enable_gqa=True)
        x = x + F.linear(y.reshape(B, h * d_h), layer.o)
        gate, up = F.linear(rms_norm(x, layer.mlp_norm, weights.eps), layer.gate_up).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.down)
    return F.linear(rms_norm(x, weights.final_norm, weights.eps), weights.head)


def step_in_triton(weights: Weights, cache: Cache, tokens: torch.Tensor) -> torch.Tensor:
    """Return `step`'s logits from this book's Triton kernels.

    They read the position on the GPU, so one graph serves all lengths. For one sequence a layer is 6 kernels: rotation,
    cache, gate, residual sum and norm are inside the products. For more, the products are the library's, and a layer
    is 10 kernels, or 9 where attention is not split, beside what the library adds. Each of ours starts while the one
    before it ends, except after the library's.
    """
    if decode is None:
        raise DecoderError("these kernels need Triton: pip install 'rooflab[gpu]'")
    _require_fit(cache, tokens, None)
    model, eps, early = weights.model, weights.eps, gemv.can_start_early(tokens)
    rotary = {"cos": cache.cos, "sin": cache.sin, "position": cache.position, "h": model.h, "early": early}
    x = F.embedding(tokens, weights.embedding)  # (B, d), the residual stream, from here on changed in place
    following = [layer.attn_norm for layer in weights.layers[1:]] + [weights.final_norm]
    normed, squares = decode.add_norm(None, x, weights.layers[0].attn_norm, eps, early=early), None
    for layer, keys, values, next_norm in zip(weights.layers, cache.k, cache.v, following, strict=True):
        rotary |= {"k_cache": keys, "v_cache": values}
        if cache.batch == 1:
            q = decode.qkv_cache(normed, layer.qkv, squares, eps=eps, **rotary)
        else:
            q = decode.rope_cache(F.linear(normed, layer.qkv), **rotary)
        heads = decode.split_attention(q, keys, values, cache.position, early=early).view(cache.batch, -1)
        if cache.batch == 1:
            _, normed, squares = gemv.added(heads, layer.o, x, layer.mlp_norm, out=x, early=early)
            gated = gemv.normed(normed, layer.gate_up, squares, eps, gated=True, early=early)
            _, normed, squares = gemv.added(gated, layer.down, x, next_norm, out=x, early=early)
        else:
            normed = decode.add_norm(F.linear(heads, layer.o), x, layer.mlp_norm, eps, early=early)
            gated = decode.swiglu(F.linear(normed, layer.gate_up), early=early)
            normed = decode.add_norm(F.linear(gated, layer.down), x, next_norm, eps, early=early)
    if cache.batch == 1:
        return gemv.normed(normed, weights.head, squares, eps, early=early)
    return F.linear(normed, weights.head)


def _require_fit(cache: Cache, tokens: torch.Tensor, length: int | None) -> None:
    if tokens.shape != (cache.batch,):
        raise DecoderError(
            f"tokens have shape {tuple(tokens.shape)}: the cache, and what was captured with it, is for "
            f"{(cache.batch,)}; capture again with a cache of that batch"
        )
    if (tokens.dtype, tokens.device) != (torch.int64, cache.position.device):
        raise DecoderError(
            f"tokens are {tokens.dtype} on {tokens.device}: convert them to int64 on {cache.position.device}"
        )
    if length is not None and length > cache.capacity:
        raise DecoderError(
            f"cache holds {cache.capacity} tokens, position {length - 1}: make it with capacity {length} or more"
        )
    if length is not None and length != cache.at + 1:
        raise DecoderError(
            f"length {length} with the cache at position {cache.at}: a step there sees {cache.at + 1} tokens; "
            f"call cache.seek({length - 1}), or take the way of that length"
        )


# Ways to launch it ---------------------------------------------------------------------------------------------------

Run = Callable[[torch.Tensor], torch.Tensor]


def eager(weights: Weights, cache: Cache, length: int | None = None) -> Run:
    """Return a function from tokens (B,) to logits (B, V) that launches each kernel from Python."""
    return lambda tokens: step(weights, cache, tokens, length)


def compiled(weights: Weights, cache: Cache, length: int | None = None, **options) -> Run:
    """Return `eager`'s function compiled by torch.compile: fewer kernels, still launched one by one.

    It compiles at its first call. `options` are torch.compile's, such as backend="aot_eager". Raises DecoderError at
    that call if there is no compiler for the code that torch generates.
    """
    # Fixed addresses: else a graph that torch captures would copy every weight into a buffer of its own at each replay.
    for tensor in (*weights.tensors(), *cache.tensors()):
        torch._dynamo.mark_static_address(tensor)
    run_once = _own_code(lambda tokens: step(weights, cache, tokens, length))
    fast = torch.compile(run_once, **{"fullgraph": True, "dynamic": False} | options)

    def run(tokens):
        _require_fit(cache, tokens, length)
        try:
            return fast(tokens)
        except Exception as error:
            if said := _missing_for_compile(error):
                raise DecoderError(f"torch.compile needs {said}") from error
            raise

    return run


def reduce_overhead(weights: Weights, cache: Cache, length: int | None = None) -> Run:
    """Return `compiled`'s function in CUDA graphs that torch captures itself, at the second call.

    The next call overwrites the logits. Raises DecoderError without a GPU, where torch would leave the graphs out.
    """
    _require_graphs()
    return compiled(weights, cache, length, mode="reduce-overhead")


def max_autotune(weights: Weights, cache: Cache, length: int | None = None) -> Run:
    """Return `reduce_overhead`'s function with each product's kernel chosen by timing some, which takes minutes."""
    _require_graphs()
    return compiled(weights, cache, length, mode="max-autotune")


def graph(weights: Weights, cache: Cache, length: int | None = None) -> Run:
    """Return `eager`'s function as one CUDA graph: all its kernels in one launch.

    The next call overwrites the logits. Raises DecoderError without a GPU.
    """
    return _captured(lambda tokens: step(weights, cache, tokens, length), cache, length)


def triton(weights: Weights, cache: Cache, length: int | None = None) -> Run:
    """Return `step_in_triton` as one CUDA graph: with length None it serves every position, else only that length."""
    return _captured(lambda tokens: step_in_triton(weights, cache, tokens), cache, length)


def _captured(one_step: Run, cache: Cache, length: int | None) -> Run:
    _require_graphs()
    # A graph knows addresses, not arguments: tokens are copied to where it looks for them.
    static = torch.zeros(cache.batch, dtype=torch.int64, device=cache.position.device)
    logits = None

    def run_once():
        nonlocal logits
        logits = one_step(static)

    replay = capture(run_once)

    def run(tokens):
        _require_fit(cache, tokens, length)
        static.copy_(tokens)
        replay()
        return logits

    return run


# Each takes weights, a cache and a length.
WAYS: dict[str, Callable[..., Run]] = {
    "eager": eager,
    "compiled": compiled,
    "reduce_overhead": reduce_overhead,
    "max_autotune": max_autotune,
    "graph": graph,
    "triton": triton,
}


def _own_code(function: types.FunctionType) -> types.FunctionType:
    """Return the function with a code object of its own: torch keeps at most 8 compiled versions of each."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)


# Errors that say what to do ------------------------------------------------------------------------------------------

# What CUDA or torch says when a capture fails, and the rule that was broken.
CAPTURE_RULES = {
    "Cannot copy between CPU and CUDA": "data was copied between the GPU and host memory that is not pinned; keep it "
    "on the GPU",
    "legacy stream": "something ran on the default stream; launch everything on the current stream",
    "uncaptured work": "it waits for a stream that is not captured; make that stream wait for this one first",
    "unjoined": "another stream was forked and not joined; let the current stream wait for it at the end",
    "enerator": "random numbers came from a generator that the graph does not know; use torch's default one, or "
    "register_generator_state",
    "out of memory": "there was no memory left for the graph's own pool; free some, or capture a smaller batch",
    # Last: one of those above can be what led to it.
    "not permitted when stream is capturing": "the host waited for the GPU, or needed a size that the GPU computes: "
    ".item(), print, nonzero, a boolean index; leave values on the GPU, and use shapes known beforehand",
}


def _require_graphs() -> None:
    if not timing.has_gpu():
        raise DecoderError(
            "a CUDA graph needs a CUDA GPU, and torch sees none here: use eager or compiled, or run this on a machine "
            "with an NVIDIA GPU"
        )


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and those behind it, the first that happened last."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def capture(call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that replays `call` from a CUDA graph; its inputs and outputs stay where they are.

    Raises DecoderError, with the rule that was broken and torch's own words, if `call` cannot be captured.
    """
    _require_graphs()
    call()  # what fails here is no matter of the capture
    try:
        return timing.graphed(call)
    except RuntimeError as error:
        # The capture ends with an error of its own, so what broke it comes before.
        said = [str(each) for each in reversed(_chain(error))]
        rule = next((rule for text, rule in CAPTURE_RULES.items() if any(text in each for each in said)), None)
        rule = rule or "an operation in it cannot be part of a graph"
        raise DecoderError(f"not captured: {rule}. torch says: {said[0].strip().splitlines()[0]}") from error


def _missing_for_compile(error: BaseException) -> str | None:
    """Return what torch.compile or Triton did not find, and how to get it, or None if something else failed."""
    said = " ".join(str(each) for each in _chain(error))
    if "Python.h: No such file" in said:
        return "Python's headers, and finds none: install `python3-dev`"
    for name, variable, sign in (
        ("C++", "CXX", "No working C++ compiler"),
        ("C", "CC", "Failed to find C compiler"),
    ):
        if sign in said:
            return (
                f"a {name} compiler, and finds none that works: install one (apt install g++) or name it in the "
                f"environment variable {variable}"
            )
    return None


class Recompiles:
    """Sees, within a with block, how often torch.compile compiled a function anew, and which guard failed each time.

    A guard is a condition under which compiled code holds, such as `length == 5`. Each failure costs a compilation of
    seconds. At `torch._dynamo.config.recompile_limit`, 8 versions of one function, torch gives up: later calls run
    eagerly with a warning, or raise with fullgraph=True. `storm` says whether the block came to that, if it called one
    compiled function. torch keeps the last 64 compilations, so no more are seen.

    >>> double = torch.compile(lambda x, n: n * x, backend="eager", dynamic=False)
    >>> with Recompiles() as seen:
    ...     found = [double(torch.ones(1), n) for n in (3, 4)]
    >>> seen.reasons
    ['n == 3']
    """

    def __enter__(self) -> Recompiles:
        from torch._dynamo.utils import get_compilation_metrics

        self.reasons: list[str] = []
        self._before = get_compilation_metrics()
        return self

    def __exit__(self, *_) -> None:
        from torch._dynamo.utils import get_compilation_metrics

        for each in get_compilation_metrics():
            if each.recompile_reason and not any(each is old for old in self._before):
                # "0/3: length == 5    # the source line": the guard stands between the compilation's id and the line
                self.reasons.append(each.recompile_reason.split("#")[0].split(": ", 1)[-1].strip())

    @property
    def count(self) -> int:
        """The number of recompilations, the one that torch refused included."""
        return len(self.reasons)

    @property
    def storm(self) -> bool:
        """Whether torch gave up compiling."""
        return self.count >= torch._dynamo.config.recompile_limit


# Kernels on paper ----------------------------------------------------------------------------------------------------

# They return new tensors and yet compute nothing.
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}


class _Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        # A result that aliases an input, without a write to it, is a view.
        returned = [each.alias_info for each in func._schema.returns]
        name = func._schema.name.removeprefix("aten::")
        if name not in NO_KERNEL and not any(alias and not alias.is_write for alias in returned):
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


def kernel_counts(call: Callable[[], object]) -> Counter:
    """Return how many kernels one eager `call` launches, by ATen operation: one for each that is not a view.

    Count on the CPU, with any sizes and the dtype in question: SDPA is one operation there, and the casts to fp32 and
    back are kernels in bf16 and nothing in fp32. For `eager` in bf16, with a length:

    ========================  =======================================================  ==
    per layer
    ========================  =======================================================  ==
    2 RMSNorms                to fp32, pow, mean, add, rsqrt, mul, to bf16, mul        16
    qkv, o, gate_up, down     mm                                                        4
    RoPE                      mul, neg, cat, mul, add                                   5
    cache                     index_copy_ of k and of v                                 2
    attention                 SDPA                                                      1
    SwiGLU                    silu, mul                                                 2
    residuals                 add                                                       2
    sum                                                                                32
    ------------------------  -------------------------------------------------------  --
    outside the layers        rows of cos and sin, embedding, RMSNorm (8), head        12
    ========================  =======================================================  ==

    So 32 n_layers + 12, and 4 for the mask (arange, gt, zeros, masked_fill_) without a length. In fp32, 28 n_layers +
    10: each norm has two kernels fewer.

    >>> kernel_counts(lambda: (torch.ones(4) + 1).view(2, 2))
    Counter({'ones': 1, 'add': 1})

    On a GPU, three kinds launch more than one:

    - SDPA: flash attention that splits the context over the SMs needs a second kernel, which combines the parts; a
      kernel that takes a mask may write the heads in another order, which a copy puts right.
    - mm: cuBLAS may split K, and sums the parts in another kernel or clears a workspace first.
    - mean: a reduction that takes several blocks per row clears their counters first.
    """
    with _Counting() as counting:
        call()
    return counting.found
