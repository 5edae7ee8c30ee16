"""Steps against transformers' own classes under torch's FLOP counter, real cache tensors, brute force, known values."""

import dataclasses
import doctest
import itertools
import math
import os
import random
import tomllib
from pathlib import Path

import numpy as np
import pytest

from rooflab import models, step
from rooflab.ledger import WORKLOADS
from rooflab.models import FAMILIES, load, model
from rooflab.step import Precision, StepError

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test may ask the network
import torch  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache  # noqa: E402
from transformers.masking_utils import sliding_window_causal_mask_function  # noqa: E402

TABLES = tomllib.loads((Path(models.__file__).parent / "data" / "models.toml").read_text(encoding="utf-8"))

# No two sizes are alike, and the window is shorter than the prompts below.
SIZES = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 80, "vocab_size": 50}
SIZES |= {"max_position_embeddings": 128, "num_key_value_heads": 4}
GQA = SIZES | {"num_key_value_heads": 2}
WINDOW = {"sliding_window": 8}
GATED = WINDOW | {"use_sliding_window": True, "max_window_layers": 1}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA = {"q_lora_rank": 28, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 18}
DEEPSEEK = SIZES | MLA | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK |= {"n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "topk_method": "greedy"}
TINY = {
    "llama": [GQA, GQA | {"head_dim": 20, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}],
    "mistral": [GQA | WINDOW, GQA | {"sliding_window": None}],
    "mixtral": [GQA | {"num_local_experts": 4, "num_experts_per_tok": 3}],
    "qwen2": [GQA, GQA | GATED],
    "qwen2_moe": [GQA | EXPERTS | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}],
    "qwen3": [GQA | {"head_dim": 20}],
    "qwen3_moe": [GQA | EXPERTS | {"decoder_sparse_step": 2}],
    "deepseek_v2": [DEEPSEEK, DEEPSEEK | {"q_lora_rank": None}],
    "deepseek_v3": [DEEPSEEK],
    "gemma": [GQA | {"head_dim": 20}],
    "gemma2": [GQA | WINDOW | {"head_dim": 20}],
    "gemma3_text": [GQA | WINDOW | {"head_dim": 20, "sliding_window_pattern": 2}],
    "gpt2": [{"n_embd": 48, "n_layer": 4, "n_head": 4, "n_positions": 32, "vocab_size": 50}],
    "gpt_neox": [SIZES],
    "granite": [GQA],
    "olmo2": [GQA],
    "phi": [GQA | {"qk_layernorm": True}],
    "phi3": [GQA | WINDOW | {"pad_token_id": 0}],
    "starcoder2": [GQA | WINDOW],
}
CASES = [(family, config) for family, configs in TINY.items() for config in configs]
FULL = ["llama-2-7b", "llama-3-8b", "llama-2-70b", "qwen2.5-7b", "gemma-7b", "gpt2", "mixtral-8x7b"]
BATCH, PROMPT, NEW = 3, 11, 2


def official(family, config, attention="eager", experts="batched_mm", device="meta"):
    """Return the transformers model of a config in bf16; batched_mm counts the experts' FLOPs whoever picks them."""
    torch.manual_seed(0)
    chosen = {"attn_implementation": attention, "experts_implementation": experts, "dtype": torch.bfloat16}
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config), **chosen).eval()


def run(network, tokens, cache, **keep):
    """Return torch's count of the FLOPs of one forward pass that brings `tokens` to each sequence."""
    ids = torch.randint(50, (BATCH, tokens)) if network.device.type == "cpu" else torch.empty(BATCH, tokens)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(ids.to(network.device, torch.long), past_key_values=cache, use_cache=True, **keep)
    return counter.get_total_flops()


def assert_flop_equal(ours, network):
    """Compare a prefill, a plain decode step and one of several tokens.

    transformers computes all pairs and then masks, and expands latent attention. Nothing else is counted: the angles
    of the rotary embedding are an elementwise product in every family, which is no matrix product.
    """
    how, cache = {"batch": BATCH, "causal": False, "latent": False}, DynamicCache(config=network.config)
    (prefill,) = step.prefill(ours, prompt=PROMPT, **how)
    assert prefill.flop == run(network, PROMPT, cache, logits_to_keep=1)
    assert step.decode(ours, context=PROMPT + 1, **how).flop == run(network, 1, cache)
    assert step.decode(ours, context=PROMPT + 1 + NEW, new_tokens=NEW, **how).flop == run(network, NEW, cache)


def by_title(found, *titles):
    """Return the operations whose titles start or end so."""
    return [each for each in found.operations if each.title.startswith(titles) or each.title.endswith(titles)]


def flop(found, *titles):
    """Return the FLOPs of their matrix products."""
    return sum(each.flop for each in by_title(found, *titles) if "tensor" in WORKLOADS[each.workload].work)


# --------------------------------------------------------------------------------------------------- FLOPs, official


def test_every_family_has_a_case():
    assert set(TINY) == set(FAMILIES)


# transformers has no sdpa for Gemma 2.
@pytest.mark.parametrize(
    "family, config, attention",
    [(*case, how) for case in CASES for how in ("eager", "sdpa") if (case[0], how) != ("gemma2", "sdpa")],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_flop_of_a_tiny_model_equal_torchs_count_of_its_class(family, config, attention):
    assert_flop_equal(load(config | {"model_type": family}), official(family, config, attention))


@pytest.mark.parametrize("id, attention", [*itertools.product(FULL, ["eager", "sdpa"]), ("deepseek-v3", "sdpa")])
def test_flop_of_a_whole_model_equal_torchs_count_of_its_class(id, attention):
    config = dict(TABLES[id]["config"])
    assert_flop_equal(model(id), official(config.pop("model_type"), config, attention))


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"])
def test_flop_of_experts_that_are_picked_in_earnest(family):
    """On the CPU each expert runs on the tokens that the router sent to it."""
    config = TINY[family][0]
    network = official(family, config, experts="eager", device="cpu")
    assert_flop_equal(load(config | {"model_type": family}), network)


@pytest.mark.parametrize("causal", [False, True])
def test_latent_attention_equals_its_products_written_out(causal):
    ours = load(DEEPSEEK | {"model_type": "deepseek_v3"})
    m, h, n, s, L = ours.mla, ours.h, ours.n_layers, 3, 10

    def empty(*shape):
        return torch.empty(shape, device="meta")

    with FlopCounterMode(display=False) as counter:
        absorbed = empty(h, BATCH * s, m.d_nope) @ empty(h, m.d_nope, m.kv_rank)
        outputs = empty(h, BATCH * s, m.kv_rank) @ empty(h, m.kv_rank, m.d_v)
        linear = counter.get_total_flops()
        scores = empty(BATCH, h, s, m.kv_rank + m.d_rope) @ empty(BATCH, 1, m.kv_rank + m.d_rope, L)
        scores @ empty(BATCH, 1, L, m.kv_rank)
    assert absorbed.shape == (h, BATCH * s, m.kv_rank) and outputs.shape == (h, BATCH * s, m.d_v)
    pairs = counter.get_total_flops() - linear
    seen = (8 + 9 + 10) / (3 * 10) if causal else 1
    found = step.decode(ours, batch=BATCH, context=L, new_tokens=s, causal=causal)
    assert flop(found, "Q into", "O out") == n * linear
    assert flop(found, "attention") == pytest.approx(n * pairs * seen, rel=1e-12)
    apart = step.decode(ours, batch=BATCH, context=L, new_tokens=s, causal=causal, latent=False)
    assert flop(found, "Q proj", "KV projection, down", "O proj", "MLP", "down") == flop(
        apart, "Q proj", "KV projection, down", "O proj", "MLP", "down"
    )


def test_attention_in_three_kernels_computes_every_pair_and_moves_the_scores():
    ours = model("llama-3-8b")
    apart = step.decode(ours, batch=2, context=100, new_tokens=10, attention="apart")
    fused = step.decode(ours, batch=2, context=100, new_tokens=10, causal=False)
    assert apart.flop == fused.flop
    assert apart.moved("activations") - fused.moved("activations") == 32 * 4 * 2 * (2 * 32 * 10 * 100)
    assert apart.moved("cache") == fused.moved("cache") and apart.moved("weights") == fused.moved("weights")
    assert apart.launches - fused.launches == 2 * 32


# ------------------------------------------------------------------------------------------------------------- bytes


def sizes(network):
    """Return the elements of all parameters, of the embedding table and of the learned positions."""
    named = dict(network.named_parameters())  # tied ones once
    positions = sum(part.numel() for name, part in named.items() if name.endswith("wpe.weight"))
    table = network.get_input_embeddings().weight.numel()
    return sum(part.numel() for part in named.values()), table, positions


@pytest.mark.parametrize("family, config", CASES, ids=lambda part: part if isinstance(part, str) else "")
def test_weights_of_a_decode_step_are_those_of_its_class(family, config):
    """Every weight is read but the rest of the embedding table, of the positions, and of the experts not picked."""
    ours, network = load(config | {"model_type": family}), official(family, config)
    total, table, positions = sizes(network)
    assert step.weight_bytes(ours) == 2 * total
    idle = 0
    if ours.moe:  # of one token's experts, the rest
        experts = [module for module in network.modules() if type(module).__name__.endswith("Experts")]
        whole = sum(part.numel() for module in experts for part in module.parameters())
        idle = whole - whole * ours.moe.top_k // ours.moe.experts
        assert len(experts) == ours.moe.layers
    rows = ours.d
    read = total - positions - (0 if ours.tied else table) - idle + rows
    for latent in (True, False):
        assert step.decode(ours, context=7, latent=latent).moved("weights") == pytest.approx(2 * read, rel=1e-12)
    # The matrices of the layers can be stored otherwise than embedding, head, norms and biases.
    outside = (
        "embed_tokens.weight",
        "embed_in.weight",
        "wte.weight",
        "wpe.weight",
        "lm_head.weight",
        "embed_out.weight",
    )
    matrices = {name: part for name, part in network.named_parameters() if part.dim() > 1}
    inside = sum(part.numel() for name, part in matrices.items() if not name.endswith(outside))
    small = Precision(weights="int8")
    assert step.weight_bytes(ours, small) == 2 * total - inside
    moved = step.decode(ours, context=7, precision=small).moved("weights")
    assert moved == pytest.approx(2 * read - (inside - idle), rel=1e-12)
    if not ours.moe:
        assert step.decode(ours, batch=3, context=7).moved("weights") == 2 * (read + 2 * rows)
        assert step.decode(ours, context=7, new_tokens=4).moved("weights") == 2 * (read + 3 * rows)


@pytest.mark.parametrize("id", ["llama-2-7b", "gemma-7b", "gpt2", "deepseek-v3"])
def test_weight_bytes_of_a_whole_model(id):
    config = dict(TABLES[id]["config"])
    assert step.weight_bytes(model(id)) == 2 * sizes(official(config.pop("model_type"), config))[0]


def cached_bytes(cache):
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize("family, config", CASES, ids=lambda part: part if isinstance(part, str) else "")
def test_cache_bytes_equal_the_tensors_of_a_real_cache(family, config):
    ours, network = load(config | {"model_type": family}), official(family, config)
    for tokens in (5, 20):
        cache = DynamicCache(config=network.config)
        run(network, tokens, cache)
        # With its window full, transformers drops one token more, whose place the next one takes.
        one = step.cache_bytes_per_token(ours) / ours.n_layers
        dropped = ours.window_layers * one if ours.window and tokens >= ours.window else 0
        assert BATCH * (step.cache_bytes(ours, tokens) - dropped) == cached_bytes(cache)
        if not ours.window_layers:
            assert BATCH * tokens * step.cache_bytes_per_token(ours) == cached_bytes(cache)
        if not ours.mla:
            static = StaticCache(config=network.config, max_cache_len=tokens)
            static.early_initialization(BATCH, ours.h_kv, ours.d_h, torch.bfloat16, "meta")
            assert BATCH * step.cache_bytes(ours, tokens) == cached_bytes(static)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2", "deepseek_v3"])
def test_a_step_reads_the_cache_once_and_writes_its_own_entries(family):
    config = TINY[family][0]
    ours = load(config | {"model_type": family})
    one = step.cache_bytes_per_token(ours)
    found = step.decode(ours, batch=3, context=20)
    assert found.moved("cache") == 3 * (step.cache_bytes(ours, 20) + one)
    found = step.decode(ours, batch=3, context=20, new_tokens=2)
    another = ours.window_layers * one / ours.n_layers  # two tokens look through windows that differ by one
    assert found.moved("cache") == 3 * (step.cache_bytes(ours, 20) + another + 2 * one)


def test_each_format_is_that_of_its_kind():
    ours, B, L = model("llama-3-8b"), 2, 100
    formats = Precision(weights="int8", cache="fp16", activations="fp32", head="bf16")
    mixed = step.decode(ours, batch=B, context=L, precision=formats)
    sixteen = step.decode(ours, batch=B, context=L)
    outside = ours.V * ours.d + ours.norm_parameters
    assert mixed.moved("weights") == (ours.parameters - outside - ours.V * ours.d) + 2 * (outside + B * ours.d)
    assert mixed.moved("cache") == sixteen.moved("cache")
    assert mixed.moved("activations") == 2 * sixteen.moved("activations")
    assert step.weight_bytes(ours, formats) == (ours.parameters - outside - ours.V * ours.d) + 2 * (
        outside + ours.V * ours.d
    )
    small = Precision(cache="fp8", head="fp32")
    assert 2 * step.decode(ours, batch=B, context=L, precision=small).moved("cache") == sixteen.moved("cache")
    assert 2 * step.cache_bytes_per_token(ours, small) == step.cache_bytes_per_token(ours)
    assert 2 * step.cache_bytes(ours, L, small) == step.cache_bytes(ours, L)
    extra = 2 * (2 * ours.V * ours.d + ours.norm_parameters)
    assert step.weight_bytes(ours, small) - step.weight_bytes(ours) == extra


def test_formats_equal_packed_tensors():
    group = torch.empty(128, dtype=torch.int8, device="meta").nbytes
    scale = torch.empty(1, dtype=torch.float16, device="meta").nbytes
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
    packed = {name: torch.empty(128, dtype=each, device="meta").nbytes for name, each in types.items()}
    packed |= {"int8": group, "int8-grouped": group + scale, "int4-grouped": group // 2 + scale}
    assert {name: 128 * size for name, size in step.STORED_BYTES.items()} == packed
    assert 128 * Precision(weights="int4-grouped").weight_bytes == packed["int4-grouped"]


@pytest.mark.parametrize("capacity", [10e9, 14e9, 80e9, 141e9])
def test_as_many_sequences_as_fit(capacity):
    ours = model("llama-2-7b")
    n = step.most_sequences(ours, capacity, 4096)
    weights, one = step.weight_bytes(ours), step.cache_bytes(ours, 4096)
    assert n == 0 or weights + n * one <= capacity
    assert weights + (n + 1) * one > capacity
    assert (n > 0) == (capacity > 16e9)


# ------------------------------------------------------------------------------------------------------ known values

# At one sequence, 4096 tokens, bf16: GFLOP, GB of weights read, GFLOP by part, FLOP per byte, share of the cache.
KNOWN = {
    "llama-2-7b": (15.362, 13.215, (4.295, 8.657, 2.147, 0.262), 512, 2.1475, 1.000, 0.140),
    "llama-2-70b": (148.164, 137.429, (24.159, 112.743, 10.737, 0.524), 320, 1.3422, 1.068, 0.0097),
    "llama-3-70b": (149.741, 139.006, (24.159, 112.743, 10.737, 2.101), 320, 1.3422, 1.067, 0.0096),
}


@pytest.mark.parametrize("id", KNOWN)
def test_known_values(id):
    total, weights, parts, cache_kib, cache_gb, intensity, share = KNOWN[id]
    found = step.decode(model(id), context=4096)
    assert round(found.flop / 1e9, 3) == total
    assert round(found.moved("weights") / 1e9, 3) == weights
    groups = [("Q proj", "K proj", "V proj", "O proj"), ("MLP",), ("attention",), ("LM head",)]
    assert (
        tuple(
            round(sum(e.flop for e in by_title(found, *g) if e.workload != "mlp_activation") / 1e9, 3) for g in groups
        )
        == parts
    )
    assert step.cache_bytes_per_token(model(id)) == cache_kib * 1024
    assert round(step.cache_bytes(model(id), 4096) / 1e9, 4) == cache_gb
    assert round(found.intensity_flop_per_byte(("weights", "cache")), 3) == intensity
    cache = found.moved("cache")
    assert cache / (cache + found.moved("weights")) == pytest.approx(share, rel=5e-3)


@pytest.mark.parametrize(
    ("id", "batch", "intensity", "share"),
    [
        ("llama-2-7b", 8, 4.0, None),
        ("llama-2-7b", 64, 6.5, None),
        ("llama-2-7b", 256, 7.0, None),
        ("llama-2-70b", 8, 8.0, None),
        ("llama-2-70b", 64, 42, 0.38),
        ("llama-2-70b", 256, 79, 0.71),
    ],
)
def test_known_intensities_of_batches(id, batch, intensity, share):
    found = step.decode(model(id), batch=batch, context=4096)
    assert float(f"{found.intensity_flop_per_byte(('weights', 'cache')):.2g}") == intensity
    if share:
        cache = found.moved("cache")
        assert cache / (cache + found.moved("weights")) == pytest.approx(share, abs=0.005)


def test_a_step_counted_by_hand():
    """Per layer: three projections, cache, attention, projection, gate, up, activation, down and two norms."""
    ours, B, L = model("llama-2-7b"), 2, 100
    found = step.decode(ours, batch=B, context=L)
    assert found.launches == 32 * 12 + 3 and found.tokens == B
    assert found.vector_flop == B * (4 * 65 * 4096 + 32 * 11008)
    layer = 2 * 4096 + 3 * (4096 + 4096) + 2 * 4096 + (4096 + 4096) + 2 * 4096  # norm, Q K V, attention, O, norm
    layer += 2 * (4096 + 11008) + 3 * 11008 + (11008 + 4096)
    assert found.moved("activations") == 2 * B * (4096 + 32 * layer + 2 * 4096 + 4096 + 32000)
    assert found.moved() == sum(found.moved(kind) for kind in ("weights", "cache", "activations"))
    assert found.intensity_flop_per_byte() == pytest.approx(found.flop / found.moved(), rel=1e-12)
    demand = found.demand()
    assert demand.work == {"tensor": found.flop, "vector": found.vector_flop}
    assert (demand.traffic, demand.launches) == ({"hbm": found.moved()}, found.launches)
    head = found.operations[-1]
    assert head.demand().title == head.title == "LM head" and head.demand().flop == head.flop
    experts = step.decode(model("mixtral-8x7b"), batch=B, context=L)
    assert experts.vector_flop == B * (4 * 65 * 4096 + 32 * 2 * 14336)


@pytest.mark.parametrize(("batch", "context", "new", "logits"), [(1, 4096, 1, 1), (3, 50, 7, 7), (2, 64, 64, 1)])
def test_the_sum_in_the_ledger_is_the_step_of_a_gated_dense_model(batch, context, new, logits):
    ours, whole = model("llama-3-8b"), WORKLOADS["step"]
    formats = Precision(weights="fp8", cache="fp32", activations="bf16", head="fp8")
    found = step.step(ours, batch=batch, context=context, new_tokens=new, logits=logits, precision=formats)
    values = {"B": batch, "L": context, "s": new, "n_out": logits, "c": 0.5, "b_w": 1, "b_kv": 4, "b_a": 2}
    values |= {name: getattr(ours, name) for name in ("d", "h", "h_kv", "d_h", "d_ff", "V", "n_layers")}
    assert whole.flop(**values) == pytest.approx(found.flop, rel=1e-12)
    assert whole.launches(**values) == found.launches
    assert whole.traffic["hbm"](**values) == pytest.approx(found.moved(), rel=1e-12)
    for kind, formula in whole.parts.items():
        assert formula(**values) == pytest.approx(found.moved(kind), rel=1e-12), kind


# ------------------------------------------------------------------------------------------------- windows and chunks


def seen(L, s, window):
    """Return how many pairs s new tokens and L in all have under transformers' mask, and how many tokens are seen."""
    mask = sliding_window_causal_mask_function(window)
    pairs = [(q, k) for q in range(L - s, L) for k in range(L) if mask(0, 0, torch.tensor(q), torch.tensor(k))]
    return len(pairs), len({k for _, k in pairs})


RANDOM = random.Random(1)
WINDOWS = [(L, RANDOM.randint(1, L), RANDOM.randint(1, 30)) for L in (RANDOM.randint(1, 24) for _ in range(40))]
WINDOWS += [(20, 5, 8), (20, 20, 8), (20, 20, 20), (20, 20, 1), (12, 5, 8), (11, 4, 8), (13, 6, 8)]


@pytest.mark.parametrize(("L", "s", "window"), WINDOWS)
def test_attention_in_a_window_equals_a_walk_over_the_pairs(L, s, window):
    ours = dataclasses.replace(model("llama-3-8b"), n_layers=3, window=window, window_layers=2)
    found = step.decode(ours, batch=2, context=L, new_tokens=s)
    full, slides = by_title(found, "attention")
    for each, times, limit in ((full, 1, L), (slides, 2, window)):
        pairs, keys = seen(L, s, limit)
        assert each.times == times
        assert each.flop == pytest.approx(times * 4 * 2 * ours.h * ours.d_h * pairs, rel=1e-12)
        assert each.moved("cache") == times * 2 * 2 * 2 * keys * ours.h_kv * ours.d_h


@pytest.mark.parametrize("chunk", [1, 7, 16, 63, 64, 1000])
@pytest.mark.parametrize("window", [None, 10])
def test_chunks_of_a_prompt_compute_what_the_whole_prompt_does(chunk, window):
    ours, prompt = model("llama-3-8b"), 64
    if window:
        ours = dataclasses.replace(ours, window=window, window_layers=8)
    (whole,) = step.prefill(ours, batch=2, prompt=prompt)
    chunks = step.prefill(ours, batch=2, prompt=prompt, chunk=chunk)
    assert len(chunks) == math.ceil(prompt / chunk)
    assert [each.tokens for each in chunks[:-1]] == [2 * chunk] * (len(chunks) - 1)
    assert sum(each.tokens for each in chunks) == 2 * prompt
    assert sum(each.flop for each in chunks) == pytest.approx(whole.flop, rel=1e-12)
    assert sum(each.vector_flop for each in chunks) == whole.vector_flop
    heads = [flop(each, "LM head") for each in chunks]
    assert heads == [0] * (len(chunks) - 1) + [2 * 2 * ours.d * ours.V]
    # Each chunk reads the weights of the layers again, and the last one those of the head.
    layers = 2 * (ours.parameters - 2 * ours.V * ours.d)
    head_and_rows = 2 * ours.V * ours.d + 2 * 2 * prompt * ours.d
    assert sum(each.moved("weights") for each in chunks) == len(chunks) * layers + head_and_rows


@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_cache_is_read_again_by_each_chunk(count):
    """Of n chunks the i-th reads i chunks' keys and values: (n + 1)/2 times all of them; each is written once."""
    ours, prompt = model("llama-3-8b"), 64
    chunks = step.prefill(ours, prompt=prompt, chunk=prompt // count)
    expected = step.cache_bytes(ours, prompt) * ((count + 1) / 2 + 1)
    assert sum(each.moved("cache") for each in chunks) == expected


# ------------------------------------------------------------------------------------------------------------ experts


@pytest.mark.parametrize(("tokens", "experts", "each"), [(1, 8, 2), (4, 8, 2), (16, 64, 6), (64, 256, 8), (9, 5, 5)])
def test_distinct_experts_equal_a_simulation(tokens, experts, each):
    """The picks of two experts exclude each other, so the variance is at most that of independent ones: 5 sigma."""
    trials, rng = 4000, np.random.default_rng(1)
    picked = np.zeros((trials, experts), bool)
    for _ in range(tokens):
        order = rng.random((trials, experts)).argsort(axis=1)[:, :each]
        np.put_along_axis(picked, order, True, axis=1)
    mean = picked.sum(axis=1).mean()
    missed = (1 - each / experts) ** tokens
    sigma = math.sqrt(experts * missed * (1 - missed) / trials)
    moe = models.Moe(experts, each, 16, 0, 1, False)
    ours = dataclasses.replace(model("llama-3-8b"), n_layers=1, moe=moe)
    for batch, new in ((tokens, 1), (1, tokens)):
        (routed,) = [
            e for e in step.decode(ours, batch=batch, context=99, new_tokens=new).operations if e.workload == "experts"
        ]
        assert abs(routed.moved("weights") / (2 * 3 * ours.d * 16) - mean) <= 5 * sigma + 1e-9
    (router,) = by_title(step.decode(ours, context=99), "router")
    assert router.moved("weights") == 2 * ours.d * experts


# ---------------------------------------------------------------------------------------------------- tensor parallel


def replicated(found):
    """Return the weight bytes that every GPU reads whole: embedding rows, norms and biases, routers."""
    return sum(each.moved("weights") for each in by_title(found, "embedding", "norm weights", "router"))


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("id", ["llama-2-7b", "llama-3-8b", "llama-2-70b", "mixtral-8x7b"])
def test_gpus_share_a_step(id, gpus):
    ours, how = model(id), {"batch": 3, "context": 50, "new_tokens": 2}
    whole, one = step.decode(ours, **how), step.decode(ours, gpus=gpus, **how)
    # With more GPUs than key-value heads, some hold the same head: its projections and its cache are there more often.
    copies = max(1, gpus / ours.h_kv)
    more = (copies - 1) * flop(whole, "K proj", "V proj") + (gpus - 1) * flop(whole, "router")
    assert gpus * one.flop == pytest.approx(whole.flop + more, rel=1e-12)
    more = (copies - 1) * sum(each.moved("weights") for each in by_title(whole, "K proj", "V proj"))
    more += (gpus - 1) * replicated(whole)
    assert gpus * one.moved("weights") == pytest.approx(whole.moved("weights") + more, rel=1e-12)
    assert gpus * one.moved("cache") == pytest.approx(copies * whole.moved("cache"), rel=1e-12)
    assert one.launches == whole.launches
    activations = torch.empty(3, 2, ours.d, dtype=torch.bfloat16, device="meta").nbytes
    assert one.link_bytes == pytest.approx(2 * ours.n_layers * 2 * (gpus - 1) / gpus * activations, rel=1e-12)


def test_link_bytes_have_the_format_of_activations():
    how = {"context": 50, "gpus": 2}
    wide = step.decode(model("llama-3-8b"), precision=Precision(activations="fp32"), **how)
    assert wide.link_bytes == 2 * step.decode(model("llama-3-8b"), **how).link_bytes > 0
    assert step.decode(model("llama-3-8b"), context=50).link_bytes == 0


def test_gpus_share_latent_attention_but_not_its_cache():
    ours, how = model("deepseek-v3"), {"batch": 3, "context": 50}
    whole, one = step.decode(ours, **how), step.decode(ours, gpus=8, **how)
    both = "Q projection, down", "KV projection, down", "router"
    assert 8 * one.flop == pytest.approx(whole.flop + 7 * flop(whole, *both), rel=1e-12)
    assert one.moved("cache") == whole.moved("cache")


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 0}, "batch is 0; it must be a whole number from 1 to 1000000000"),
        ({"batch": -1}, "batch is -1; it must be a whole number from 1"),
        ({"batch": 2.5}, "batch is 2.5; it must be a whole number"),
        ({"batch": True}, "batch is True; it must be a whole number"),
        ({"batch": "8"}, "batch is '8'; it must be a whole number"),
        ({"batch": 10**9 + 1}, "batch is 1000000001; it must be a whole number from 1 to 1000000000"),
        ({"context": 0}, "context is 0; it must be a whole number from 1"),
        ({"context": 4.0}, "context is 4.0; it must be a whole number"),
        ({"new_tokens": 0}, "new_tokens is 0; it must be a whole number from 1 to 100"),
        ({"new_tokens": 101}, "new_tokens is 101; it must be a whole number from 1 to 100"),
        ({"gpus": 0}, "gpus is 0; it must be a whole number from 1 to 32"),
        ({"gpus": 3}, "gpus is 3; 32 query and 8 key-value heads cannot be shared evenly"),
        ({"gpus": 64}, "gpus is 64; it must be a whole number from 1 to 32"),
        ({"attention": "flash"}, "attention is 'flash'; choose from fused, apart"),
    ],
)
def test_a_step_that_cannot_be(change, said):
    with pytest.raises(StepError) as error:
        step.decode(model("llama-3-8b"), **{"context": 100} | change)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": 0}, "prompt is 0"),
        ({"prompt": 2.5}, "prompt is 2.5"),
        ({"chunk": 0}, "chunk is 0"),
        ({"chunk": -5}, "chunk is -5"),
        ({"batch": 0}, "batch is 0"),
    ],
)
def test_a_prompt_that_cannot_be(change, said):
    with pytest.raises(StepError, match=said):
        step.prefill(model("llama-3-8b"), **{"prompt": 100} | change)


@pytest.mark.parametrize(("h", "h_kv"), [(24, 6), (24, 24), (36, 6), (7, 1), (1, 1), (64, 8)])
def test_gpus_that_share_the_heads_are_those_that_a_step_takes(h, h_kv):
    ours = dataclasses.replace(model("llama-3-8b"), h=h, h_kv=h_kv)

    def takes(gpus):
        try:
            return step.decode(ours, context=9, gpus=gpus).flop > 0
        except StepError:
            return False

    # Whole query heads on each; and whole key-value heads on each, or each on a whole number of GPUs.
    want = [t for t in range(1, h + 1) if h % t == 0 and (h_kv / t).is_integer() | (t / h_kv).is_integer()]
    assert step.gpu_counts(ours) == want == [t for t in range(1, h + 2) if takes(t)]


@pytest.mark.parametrize("share", [0.9, 1.1, 2.5, 4.5, 5.9, 12.5, 23.9, 24.1])
def test_the_fewest_gpus_that_hold_the_weights_share_the_heads(share):
    ours = dataclasses.replace(model("llama-3-8b"), h=24, h_kv=6)  # 1, 2, 3, 6, 12, 24
    capacity = step.weight_bytes(ours) / share
    want = {0.9: 1, 1.1: 2, 2.5: 3, 4.5: 6, 5.9: 6, 12.5: 24, 23.9: 24, 24.1: None}[share]
    assert step.least_gpus(ours, capacity) == want


def test_key_value_heads_that_cannot_be_shared():
    ours = dataclasses.replace(model("llama-3-8b"), h=24, h_kv=6)
    with pytest.raises(StepError, match="gpus is 4; 24 query and 6 key-value heads .* choose from 1, 2, 3, 6, 12, 24$"):
        step.decode(ours, context=9, gpus=4)
    assert step.decode(ours, context=9, gpus=12).flop > 0


@pytest.mark.parametrize("logits", [-1, 3, 1.0, True])
def test_logits_that_cannot_be(logits):
    with pytest.raises(StepError, match="logits is"):
        step.step(model("gpt2"), batch=1, context=9, new_tokens=2, logits=logits)


@pytest.mark.parametrize("kind", ["weights", "cache", "activations", "head"])
def test_an_unknown_format(kind):
    with pytest.raises(StepError, match=f"{kind}: unknown format 'int3'; choose from fp32, bf16, .*int4-grouped"):
        Precision(**{kind: "int3"})


def test_doctests():
    result = doctest.testmod(step)
    assert result.attempted >= 8 and result.failed == 0


def test_what_has_no_meaning_is_refused():
    v3, mixtral = model("deepseek-v3"), model("mixtral-8x7b")
    with pytest.raises(StepError, match="no form in three kernels"):
        step.decode(v3, context=64, attention="apart")
    for each in (v3, mixtral):
        with pytest.raises(StepError, match="no dense layers of one shape"):
            step.linear_layers(each)
    with pytest.raises(StepError, match="math: unknown format 'int3'"):
        Precision(math="int3")
