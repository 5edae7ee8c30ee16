"""Transformer models as data: the sizes that a Hugging Face config.json states, and the parameters that they make.

The built-in models are in `data/models.toml`; `load` reads your own config.json the same way. A config is read as the
class of its `model_type` in the transformers library reads it: a key that is missing takes that class's default, and
each default that is used is a sentence in `Model.assumed`. What changes the arithmetic and is not known is refused.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType

# The limits only catch slips, and keep a per-layer list short; no model is near them.
MOST, MOST_LAYERS, MOST_FILE_BYTES = 10**9, 10**4, 2**24


class ModelError(ValueError):
    """Raised when a config or a request for a model is wrong; its message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def _show(value: object) -> str:
    """Return `value` as a message shows it: as JSON spells it, at most 60 characters long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to print very long integers
        text = f"a {type(value).__name__} that is too long to print"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown(value: object, choices: Iterable[str], cutoff: float = 0.6, alike=None) -> str:
    """Return the part of a message that names a wrong value, the nearest right one and all right ones."""
    choices = list(choices)
    near = difflib.get_close_matches(_show(value).strip("'").lower(), choices if alike is None else alike, 1, cutoff)
    meant = f", did you mean {near[0]!r}?" if near else ""
    return f"unknown {_show(value)}{meant}; one of: {', '.join(choices)}"


def _slip(value: object, least: int, most: int) -> str | None:
    """Return what is wrong with a count, or None."""
    if type(value) is float and value.is_integer() and abs(value) <= MOST:
        return f"{value!r} is not a whole number; write {value:.0f}"
    if type(value) is not int:
        return f"{_show(value)} is not a whole number; write a count such as 32"
    if value < least:
        return f"{_show(value)} is less than {least}; write the model's own figure"
    if value > most:
        return f"{_show(value)} is more than {most}, which no model has; check the digits"
    return None


@dataclass(frozen=True)
class Mla:
    """The widths of multi-head latent attention; `q_rank` of None projects the queries directly."""

    q_rank: int | None
    kv_rank: int
    d_nope: int
    d_rope: int
    d_v: int


@dataclass(frozen=True)
class Moe:
    """A mixture of experts in `layers` of a model's layers; the others are dense, with the model's `d_ff`.

    `d_ff` is the width of one routed expert, `shared_d_ff` the total width of those that every token uses (0: none).
    `shared_gate` is a projection from d to 1 that weighs the shared experts.
    """

    experts: int
    top_k: int
    d_ff: int
    shared_d_ff: int
    layers: int
    shared_gate: bool


_MAY_BE_NONE = ("max_context", "window", "mla", "moe", "q_rank")
_MAY_BE_ZERO = ("window_layers", "norm_parameters", "bias_parameters", "position_parameters", "shared_d_ff")


@dataclass(frozen=True)
class Model:
    """One decoder-only transformer; `norm_parameters` and the two after it are totals over the whole model.

    `d_h` is the width of one query and key head; with latent attention (`mla`) it is d_nope + d_rope, and h_kv is h.
    `window_layers` counts the layers whose attention sees at most `window` tokens.
    """

    id: str
    title: str
    source: str
    family: str
    d: int
    n_layers: int
    h: int
    h_kv: int
    d_h: int
    d_ff: int
    V: int
    gated: bool
    tied: bool
    max_context: int | None
    window: int | None
    window_layers: int
    norm_parameters: int
    bias_parameters: int
    position_parameters: int
    mla: Mla | None
    moe: Moe | None
    assumed: tuple[str, ...]

    def __post_init__(self) -> None:
        for prefix, part in (("", self), ("mla.", self.mla), ("moe.", self.moe)):
            for spec in fields(part) if part else ():
                value, name = getattr(part, spec.name), prefix + spec.name
                if "int" not in spec.type or (value is None and spec.name in _MAY_BE_NONE):
                    continue
                total = spec.name.endswith("_parameters")
                most = MOST**3 if total else MOST_LAYERS if spec.name.endswith("layers") else MOST
                if slip := _slip(value, 0 if spec.name in _MAY_BE_ZERO else 1, most):
                    raise ModelError(f"{name}: {slip}")
        if self.h % self.h_kv:
            raise ModelError(
                f"num_attention_heads: {self.h} is not a multiple of num_key_value_heads ({self.h_kv}); correct either"
            )
        if self.window_layers > self.n_layers or (self.window is None) != (self.window_layers == 0):
            raise ModelError(f"window: {self.window} in {self.window_layers} of {self.n_layers} layers; correct them")
        if self.moe and self.moe.top_k > self.moe.experts:
            raise ModelError(
                f"num_experts_per_tok: {self.moe.top_k} is more than the {self.moe.experts} experts; correct either"
            )
        if self.moe and self.moe.layers > self.n_layers:
            raise ModelError(f"moe.layers: {self.moe.layers} is more than the {self.n_layers} layers; correct either")

    @property
    def parameters(self) -> int:
        """Return the number of parameters, a tied embedding counted once.

        >>> f"{model('llama-2-7b').parameters:,}"
        '6,738,415,616'
        """
        if self.mla:
            m = self.mla
            key_and_value = self.d * (m.kv_rank + m.d_rope) + m.kv_rank * self.h * (m.d_nope + m.d_v)
            query = m.q_rank * (self.d + self.h * self.d_h) if m.q_rank else self.d * self.h * self.d_h
            attention = query + key_and_value + self.h * m.d_v * self.d
        else:
            attention = self.d * self.d_h * 2 * (self.h + self.h_kv)  # Q and O, K and V
        per_width = (3 if self.gated else 2) * self.d
        total = self.n_layers * attention
        if self.moe:
            router = self.d * (self.moe.experts + self.moe.shared_gate)
            widths = self.moe.experts * self.moe.d_ff + self.moe.shared_d_ff
            total += self.moe.layers * (router + per_width * widths)
        total += (self.n_layers - (self.moe.layers if self.moe else 0)) * per_width * self.d_ff
        total += self.V * self.d * (1 if self.tied else 2)
        return total + self.norm_parameters + self.bias_parameters + self.position_parameters


# ------------------------------------------------------------------------------------------------------- families

_NAMES = {
    "d": ("hidden_size",),
    "n_layers": ("num_hidden_layers",),
    "h": ("num_attention_heads",),
    "d_ff": ("intermediate_size",),
    "V": ("vocab_size",),
    "max_context": ("max_position_embeddings",),
}
_GPT2_NAMES = _NAMES | {
    "d": ("n_embd", "hidden_size"),
    "n_layers": ("n_layer", "num_hidden_layers"),
    "h": ("n_head", "num_attention_heads"),
    "d_ff": ("n_inner",),
    "max_context": ("n_positions", "max_position_embeddings"),
}


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What the layers of one model_type are made of, and what its class takes for a key that is missing.

    A key in neither `defaults` nor a rule below must be in the file. `biases` are (key, default, what it adds to), and
    a key of None is always on. `window` names the layers that slide; "gated" ones do so if use_sliding_window is true.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NAMES)
    defaults: Mapping[str, int] = field(default_factory=dict)
    tied: bool = False
    gated: bool = True
    h_kv_is_h: bool = False
    head_dim: bool = True  # the class reads it
    norms: int = 2  # as wide as d, in each layer; one more follows the last layer
    norm_bias: bool = False  # LayerNorm has one, RMSNorm has none
    qk_norm: str = ""  # "head": one head wide; "heads": as wide as all; "key": if qk_layernorm is true
    biases: tuple[tuple[str | None, bool, str], ...] = ()
    learned_positions: bool = False
    window: str = ""  # "all", "even", "pattern", "gated all", "gated late", "gated early even"
    mla: bool = False
    moe: str = ""


_ATTENTION_BIAS = (("attention_bias", False, "qkv o"),)
_LLAMA_BIASES = (*_ATTENTION_BIAS, ("mlp_bias", False, "mlp"))
_DEEPSEEK = {"mla": True, "moe": "deepseek", "h_kv_is_h": True, "biases": (("attention_bias", False, "mla"),)}
_GEMMA_2 = {"tied": True, "norms": 4, "biases": _ATTENTION_BIAS}

# As in transformers 5.24; a test holds each against the parameters of its class.
FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "llama": _Family(biases=_LLAMA_BIASES),
        "mistral": _Family(defaults={"num_key_value_heads": 8, "sliding_window": 4096}, window="all"),
        "mixtral": _Family(defaults={"num_key_value_heads": 8}, window="all", moe="mixtral"),
        "qwen2": _Family(
            defaults={"num_key_value_heads": 32, "sliding_window": 4096},
            biases=((None, True, "qkv"),),
            window="gated late",
        ),
        "qwen2_moe": _Family(
            defaults={"num_key_value_heads": 16, "sliding_window": 4096},
            biases=(("qkv_bias", True, "qkv"),),
            window="gated early even",
            moe="qwen2",
        ),
        "qwen3": _Family(
            defaults={"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096},
            biases=_ATTENTION_BIAS,
            qk_norm="head",
            window="gated late",
        ),
        "qwen3_moe": _Family(
            defaults={"num_key_value_heads": 4, "sliding_window": 4096},
            biases=_ATTENTION_BIAS,
            qk_norm="head",
            window="gated all",
            moe="qwen3",
        ),
        "deepseek_v2": _Family(defaults={"first_k_dense_replace": 0, "q_lora_rank": 1536}, **_DEEPSEEK),
        "deepseek_v3": _Family(defaults={"first_k_dense_replace": 3, "q_lora_rank": 1536}, **_DEEPSEEK),
        "gemma": _Family(defaults={"num_key_value_heads": 16, "head_dim": 256}, tied=True, biases=_ATTENTION_BIAS),
        "gemma2": _Family(
            defaults={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}, window="even", **_GEMMA_2
        ),
        # Published files of Gemma 3 leave out their heads and vocabulary.
        "gemma3_text": _Family(
            defaults={
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "vocab_size": 262208,
                "sliding_window": 4096,
            },
            qk_norm="head",
            window="pattern",
            **_GEMMA_2,
        ),
        "gpt2": _Family(
            names=_GPT2_NAMES,
            tied=True,
            gated=False,
            h_kv_is_h=True,
            head_dim=False,
            norm_bias=True,
            biases=((None, True, "qkv o mlp"),),
            learned_positions=True,
        ),
        "gpt_neox": _Family(
            gated=False,
            h_kv_is_h=True,
            head_dim=False,
            norm_bias=True,
            biases=(("attention_bias", True, "qkv o"), (None, True, "mlp")),
        ),
        "granite": _Family(biases=_LLAMA_BIASES),
        "olmo2": _Family(qk_norm="heads", biases=_ATTENTION_BIAS),
        "phi": _Family(
            gated=False,
            head_dim=False,
            norms=1,
            norm_bias=True,
            qk_norm="key",
            biases=((None, True, "qkv o mlp head"),),
        ),
        "phi3": _Family(window="all"),
        "starcoder2": _Family(
            defaults={"num_key_value_heads": 2},
            tied=True,
            gated=False,
            norm_bias=True,
            biases=(("use_bias", True, "qkv o mlp"),),
            window="all",
        ),
    }
)


def _each(reason: str, *keys: str) -> dict[str, str]:
    return dict.fromkeys(keys, reason)


# Keys that change the arithmetic. One that is set, and that the family does not read, is refused.
_CHANGES = {
    **_each("latent attention (MLA)", "kv_lora_rank", "q_lora_rank", "o_lora_rank"),
    **_each(
        "experts", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_shared_experts"
    ),
    **_each("experts", "moe_intermediate_size", "shared_expert_intermediate_size", "moe_layer_freq", "mlp_layer_types"),
    **_each("experts", "moe_num_experts", "shared_intermediate_size", "num_shared_experts"),
    **_each("biases", "attention_bias", "qkv_bias", "mlp_bias", "use_bias", "use_qkv_bias", "bias", "add_bias_linear"),
    **_each("norms of queries and keys", "use_qk_norm", "qk_norm", "qk_layernorm"),
    **_each("a sliding window", "sliding_window", "use_sliding_window"),
    **_each("chunked or sparse attention", "attention_chunk_size", "index_topk", "compress_ratios"),
    **_each("attention in both directions", "use_bidirectional_attention"),
    **_each("layers that are not attention", "layers_block_type", "hybrid_override_pattern", "full_attention_interval"),
    **_each("layers that are not attention", "attn_layer_period", "attn_layer_indices", "linear_attn_config"),
    **_each("layers that are not attention", "mamba_d_state", "ssm_cfg", "state_size", "linear_num_key_heads"),
    **_each("layers that differ", "per_layer_config", "block_configs", "num_kv_shared_layers"),
    **_each("embeddings of another width", "hidden_size_per_layer_input", "embedding_size", "word_embed_proj_dim"),
    **_each("an encoder", "is_encoder_decoder", "add_cross_attention", "cross_attention_layers"),
}


# -------------------------------------------------------------------------------------------------------- reading


class _Reader:
    """The keys of one config: what is asked for is checked, and a default that is used becomes a sentence."""

    def __init__(self, config: Mapping, where: str, family: str) -> None:
        self.config, self.where, self.name, self.family = config, where, family, FAMILIES[family]
        self.assumed: list[str] = []
        self.asked: set[str] = set()

    def error(self, key: str, message: str) -> ModelError:
        return ModelError(f"{self.where}{key}: {message}")

    def assume(self, key: str, taken: str) -> None:
        absent = "null" if key in self.config else "not in the file"
        self.assumed.append(f"{key} is {absent}: taken as {taken}")

    def count(
        self,
        *keys: str,
        derived: Callable[[], tuple[int, str]] | None = None,
        default: int | None = None,
        least: int = 1,
        most: int = MOST,
    ) -> int:
        """Return the count under one of `keys`; where it is missing, the family's default, `derived` or `default`."""
        self.asked.update(keys)
        found = [key for key in keys if self.config.get(key) is not None]
        key = found[0] if found else keys[0]
        default = self.family.defaults.get(key, default)
        for other in found[1:]:
            if self.config[other] != self.config[key]:
                raise self.error(key, f"{_show(self.config[key])} differs from {other}; leave one of them out")
        if not found and derived and key not in self.family.defaults:
            value, how = derived()
            self.assume(key, how)
            return value
        if not found and default is None:
            raise self.error(key, f"missing; add {key} = ... (a whole number) as the model's authors state it")
        if key not in self.config:
            self.assume(key, f"{default}, the default of {self.name}")
            return default
        if slip := _slip(self.config.get(key), least, most):
            raise self.error(key, slip)
        return self.config[key]

    def count_or_none(self, key: str) -> int | None:
        """Return the count under `key`, and None for null; where it is missing, the family's default or None.

        Null means "none" here; elsewhere a null is refused.
        """
        self.asked.add(key)
        if key in self.config or key in self.family.defaults:
            return None if self.config.get(key, 0) is None else self.count(key)
        self.assume(key, "null")
        return None

    def flag(self, key: str, default: bool) -> bool:
        """Return whether `key` is true."""
        self.asked.add(key)
        if key not in self.config:
            self.assume(key, f"{str(default).lower()}, the default of {self.name}")
            return default
        if type(self.config[key]) is not bool:
            raise self.error(key, f"{_show(self.config[key])} is neither true nor false; write one of them")
        return self.config[key]

    def texts(self, key: str, length: int) -> list[str] | None:
        """Return the list of `length` texts under `key`, or None where there is none."""
        value = self.config.get(key)
        if value is not None and not (
            isinstance(value, list) and len(value) == length and all(isinstance(item, str) for item in value)
        ):
            raise self.error(key, f"{_show(value)} is not a list of {length} texts, one for each layer; correct it")
        return value


def _heads(read: _Reader, d: int, h: int) -> tuple[int, int]:
    """Return h_kv and d_h."""
    family = read.family

    def divided() -> tuple[int, str]:
        if d % h:
            raise read.error("head_dim", f"missing, and the hidden size {d} is not a multiple of {h} heads; add it")
        return d // h, f"hidden_size / num_attention_heads ({d // h})"

    if family.h_kv_is_h:
        h_kv = read.config.get("num_key_value_heads")
        if h_kv is not None and h_kv != h:
            raise read.error("num_key_value_heads", f"{_show(h_kv)}, but in {read.name} it is the number of heads, {h}")
        h_kv = h
    else:
        every = f"num_attention_heads ({h}), every head has its own keys and values"
        h_kv = read.count("num_key_value_heads", derived=lambda: (h, every))
    if family.mla:
        return h_kv, 0
    if not family.head_dim:
        d_h, given = divided()[0], read.config.get("head_dim")
        if given is not None and given != d_h:
            raise read.error("head_dim", f"{_show(given)}, but {read.name} always has hidden size / heads, {d_h}")
        return h_kv, d_h
    return h_kv, read.count("head_dim", derived=divided)


def _window(read: _Reader, n_layers: int) -> tuple[int | None, int]:
    """Return the window and the number of layers that have it."""
    rule, layers = read.family.window, range(n_layers)
    reads_types = rule in ("even", "pattern", "gated late", "gated early even")
    if rule.startswith("gated"):
        read.asked.add("sliding_window")
        rule = rule.removeprefix("gated ") if read.flag("use_sliding_window", False) else ""
    window = read.count_or_none("sliding_window") if rule else None
    types = read.texts("layer_types", n_layers)
    if types and (odd := set(types) - {"full_attention", "sliding_attention"}):
        raise read.error("layer_types", f"{_show(min(odd))} layers change the arithmetic and are not known here")
    stated = types and [kind == "sliding_attention" for kind in types]
    if stated and reads_types:
        slides = stated
    elif rule == "late":
        first = read.count("max_window_layers", default=28, least=0)
        slides = [i >= first for i in layers]
    elif rule == "early even":
        end = read.count("max_window_layers", default=28, least=0)
        slides = [i % 2 == 0 and i < end for i in layers]
    elif rule == "even":
        slides = [i % 2 == 0 for i in layers]
    elif rule == "pattern":
        every = read.count("sliding_window_pattern", default=6)
        slides = [(i + 1) % every != 0 for i in layers]
    else:
        slides = [rule == "all" and window is not None for i in layers]
    if stated and slides != stated:
        raise read.error("layer_types", f"{sum(stated)} layers slide, but {read.name} has {sum(slides)} that do")
    if any(slides) and window is None:
        raise read.error("sliding_window", f"no window, but {sum(slides)} layers slide; add it, in tokens")
    return (window, sum(slides)) if any(slides) else (None, 0)


def _mla(read: _Reader) -> Mla:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return Mla(read.count_or_none("q_lora_rank"), *(read.count(name) for name in names))


def _moe(read: _Reader, n_layers: int, d_ff: int) -> Moe | None:
    """Return the experts, or None where no layer has them."""
    kind, layers, shared_d_ff = read.family.moe, n_layers, 0
    names = {"mixtral": ("num_local_experts", "num_experts"), "deepseek": ("n_routed_experts", "num_local_experts")}
    experts = read.count(*names.get(kind, ("num_experts", "num_local_experts")))
    top_k = read.count("num_experts_per_tok")
    width = d_ff if kind == "mixtral" else read.count("moe_intermediate_size")
    if kind == "qwen2":
        shared_d_ff = read.count("shared_expert_intermediate_size", least=0)
    if kind.startswith("qwen"):
        step = read.count("decoder_sparse_step", default=1)
        dense = read.config.get("mlp_only_layers")
        dense = [] if dense is None else dense
        if not isinstance(dense, list) or any(_slip(i, 0, n_layers - 1) for i in dense):
            raise read.error("mlp_only_layers", f"{_show(dense)} is not a list of layers from 0 to {n_layers - 1}")
        layers = sum((i + 1) % step == 0 for i in set(range(n_layers)) - set(dense))
    elif kind == "deepseek":
        shared_d_ff = width * read.count("n_shared_experts", least=0)
        layers -= read.count("first_k_dense_replace", least=0, most=n_layers)
        if read.count("moe_layer_freq", derived=lambda: (1, "1, every layer after the dense ones")) != 1:
            raise read.error("moe_layer_freq", "only 1 is known here, and to the class; leave it out or write 1")
    return Moe(experts, top_k, width, shared_d_ff, layers, kind == "qwen2") if layers else None


def _norm_parameters(read: _Reader, sizes: Mapping, mla: Mla | None) -> int:
    family, n_layers, d_h = read.family, sizes["n_layers"], sizes["d_h"]
    one = sizes["d"] * (2 if family.norm_bias else 1)
    per_layer = family.norms * one
    if family.qk_norm == "head":
        per_layer += 2 * d_h
    elif family.qk_norm == "heads":
        per_layer += (sizes["h"] + sizes["h_kv"]) * d_h
    elif family.qk_norm == "key" and read.flag("qk_layernorm", False):
        per_layer += 2 * 2 * d_h  # a weight and a bias each
    if mla:
        per_layer += (mla.q_rank or 0) + mla.kv_rank
    return n_layers * per_layer + one


def _bias_parameters(read: _Reader, sizes: Mapping, mla: Mla | None) -> int:
    s, total = sizes, 0
    widths = {
        "qkv": s["n_layers"] * (s["h"] + 2 * s["h_kv"]) * s["d_h"],
        "o": s["n_layers"] * s["d"],
        "mlp": s["n_layers"] * ((2 if read.family.gated else 1) * s["d_ff"] + s["d"]),
        "head": s["V"],
    }
    if mla:  # of the two projections down and of the output projection
        widths["mla"] = s["n_layers"] * ((mla.q_rank or 0) + mla.kv_rank + mla.d_rope + s["d"])
    for key, default, parts in read.family.biases:
        if key is None or read.flag(key, default):
            total += sum(widths[part] for part in parts.split())
    return total


def _unknown_type(said: object) -> str:
    """Return what is wrong with a file's model_type; another number is another architecture, not a slip of the pen."""
    alike = [each for each in FAMILIES if re.findall(r"\d+", each) == re.findall(r"\d+", _show(said))]
    return _unknown(said, FAMILIES, cutoff=0.85, alike=alike)


def _family(config: Mapping, where: str, as_type: str | None) -> tuple[str, Mapping, str, list[str]]:
    """Return the family, the keys to read, the prefix of messages about them, and what was assumed so far."""
    said, text, assumed = config.get("model_type"), config.get("text_config"), []
    at = f"{where}model_type"
    if text is not None:
        if not isinstance(text, Mapping):
            raise ModelError(f"{where}text_config: {_show(text)} is not an object; write the language model's keys")
        assumed.append("text_config holds the language model: only it is counted, without the image or audio parts")
        inner = text.get("model_type")
        outer, where = said, f"{where}text_config."
        said = f"{outer}_text" if inner is None and isinstance(outer, str) else inner
        said = outer if inner is None and said not in FAMILIES else said
        # transformers ties the embeddings by the outer key.
        outer_keys = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
        config, at = {**text, **outer_keys}, at if inner is None else f"{where}model_type"
    if as_type is not None:
        if not isinstance(as_type, str) or as_type not in FAMILIES:
            raise ModelError(f"as_type: {_unknown(as_type, FAMILIES)}")
        if said != as_type:
            assumed.append(f"model_type is {_show(said)}: read as {as_type}, because as_type says so")
        return as_type, config, where, assumed
    if not isinstance(said, str) or said not in FAMILIES:
        problem = "missing; add it, one of: " + ", ".join(FAMILIES) if said is None else _unknown_type(said)
        raise ModelError(f'{at}: {problem}; or give as_type="llama" (--as llama) to read it as if it were that')
    return said, config, where, assumed


def _parse(config: object, where: str, id: str, title: str, source: str, as_type: str | None) -> Model:
    """Return the model that a config states; `where` names the file in messages."""
    if not isinstance(config, Mapping):
        raise ModelError(f"{where}{_show(config)} is not an object; give a config.json, which starts with {{")
    name, config, inner, assumed = _family(config, where, as_type)
    read = _Reader(config, inner, name)
    names, family = read.family.names, read.family
    sizes = {key: read.count(*names[key]) for key in ("d", "h", "V")}
    sizes["n_layers"] = read.count(*names["n_layers"], most=MOST_LAYERS)
    if name == "gpt2":
        wide = 4 * sizes["d"]
        sizes["d_ff"] = read.count(*names["d_ff"], derived=lambda: (wide, f"4 x the hidden size, {wide}"))
    else:
        sizes["d_ff"] = read.count(*names["d_ff"])
    sizes["h_kv"], sizes["d_h"] = _heads(read, sizes["d"], sizes["h"])
    mla = _mla(read) if family.mla else None
    if mla:
        sizes["d_h"] = mla.d_nope + mla.d_rope
    moe = _moe(read, sizes["n_layers"], sizes["d_ff"]) if family.moe else None
    window, window_layers = _window(read, sizes["n_layers"])
    context = names["max_context"]
    if family.learned_positions:
        max_context = read.count(*context, default=1024)
    elif any(config.get(key) is not None for key in context):
        max_context = read.count(*context)
    else:
        max_context = None
        read.assume(context[0], "unknown, so no context is too long")
    numbers = {
        "tied": read.flag("tie_word_embeddings", family.tied),
        "norm_parameters": _norm_parameters(read, sizes, mla),
        "bias_parameters": _bias_parameters(read, sizes, mla),
        "position_parameters": max_context * sizes["d"] if family.learned_positions else 0,
    }
    for key, what in _CHANGES.items():
        if key not in read.asked and config.get(key):
            raise read.error(
                key, f"{_show(config[key])} means {what}, which {name} does not have; it cannot be read so"
            )
    if config.get("num_nextn_predict_layers"):
        read.assumed.append("num_nextn_predict_layers: the layers that predict further tokens are left out")
    if config.get("quantization_config"):
        read.assumed.append("quantization_config is not read: you choose the data type of the weights")
    try:
        return Model(
            id=id,
            title=title,
            source=source,
            family=name,
            **sizes,
            gated=family.gated,
            max_context=max_context,
            window=window,
            window_layers=window_layers,
            **numbers,
            mla=mla,
            moe=moe,
            assumed=(*assumed, *read.assumed),
        )
    except ModelError as error:
        causes = [said for said in read.assumed if said.split()[0] in str(error)]
        raise ModelError("; ".join([f"{inner}{error}", *causes])) from None


def _read_json(path: Path) -> object:
    """Return what the JSON file at `path`, or config.json in the folder there, holds."""
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ModelError(f"{path}: {path.stat().st_size} byte are too many for a config.json; give the path of one")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; give the path of a config.json or of a folder with one") from None
    except ModelError:
        raise
    except UnicodeDecodeError as error:  # some other kind of file
        raise ModelError(f"{path}: not valid JSON: {error}; give the path of a config.json") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}; correct the file there") from None


def load(source: str | Path | Mapping, *, as_type: str | None = None) -> Model:
    """Return the model of a config.json: its path, a folder that contains it, its content, or the id of a built-in one.

    Text that is an id is never a path; write ./gpt2 for a folder of that name. `as_type` reads the config as if its
    model_type were that one, for a model whose layers are built the same.

    >>> tiny = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...         "intermediate_size": 128, "vocab_size": 100}
    >>> load(tiny).parameters
    95040
    >>> load(tiny).assumed[0]
    'num_key_value_heads is not in the file: taken as num_attention_heads (4), every head has its own keys and values'
    >>> load(tiny | {"hidden_size": 63})
    Traceback (most recent call last):
    ...
    rooflab.models.ModelError: config: head_dim: missing, and the hidden size 63 is not a multiple of 4 heads; add it
    """
    if isinstance(source, Mapping):
        return _parse(source, "config: ", "config", "config", "a config given as a dict", as_type)
    if isinstance(source, str) and source in _tables():
        return _built_in(source, as_type)
    if not isinstance(source, (str, Path)) or not str(source).strip():
        raise ModelError(f"model: {_show(source)} is not a path, an id or a dict; give the path of a config.json")
    path = Path(source)
    try:
        path, found = (path / "config.json" if path.is_dir() else path), path.exists()
    except (OSError, ValueError):  # too long, or with a NUL
        found = False
    if not found and isinstance(source, str) and not source.endswith(".json") and os.sep not in source:
        raise ModelError(f"model: {_unknown(source, _tables())}; or the path of a config.json, and no file is there")
    config = _read_json(path)
    whole = Path(os.path.abspath(path))
    id = (whole.parent.name if whole.name == "config.json" else whole.stem) or "config"
    return _parse(config, f"{path}: ", id, id, str(path), as_type)


@cache
def _tables() -> Mapping[str, dict]:
    path = Path(__file__).parent / "data" / "models.toml"
    return MappingProxyType(tomllib.loads(path.read_text(encoding="utf-8")))


def _built_in(id: str, as_type: str | None = None) -> Model:
    table = _tables()[id]
    return _parse(table["config"], f"models.toml: {id}.config.", id, table["title"], table["source"], as_type)


@cache
def models() -> Mapping[str, Model]:
    """Return the built-in models, by id.

    >>> models()["llama-3-70b"].title
    'Llama 3 70B'
    """
    return MappingProxyType({id: _built_in(id) for id in _tables()})


def model(id: str) -> Model:
    """Return a built-in model; ids match exactly.

    >>> model("llama-3-8b").h, model("llama-3-8b").h_kv
    (32, 8)
    """
    if not isinstance(id, str) or id not in models():
        raise ModelError(f"model: {_unknown(id, models())}")
    return models()[id]
