"""The counts of a model against transformers' own classes, and the messages for wrong configs."""

import dataclasses
import doctest
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflab import models
from rooflab.models import FAMILIES, Mla, Model, ModelError, Moe, load, model

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test may ask the network
import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache  # noqa: E402

TABLES = tomllib.loads((Path(models.__file__).parent / "data" / "models.toml").read_text(encoding="utf-8"))
GOLDEN = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v3": 671_026_404_352,  # without the layer for multi-token prediction
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
}

SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 50}
SIZES |= {"max_position_embeddings": 128}
GQA = SIZES | {"num_key_value_heads": 2}
GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 32, "vocab_size": 50}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20}
DEEPSEEK = SIZES | MLA | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK |= {"n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "topk_method": "greedy"}
KINDS = ["full_attention", "sliding_attention", "full_attention", "full_attention"]

# family: its smallest config, and changes to it.
BASE = {
    "llama": SIZES,
    "mistral": GQA,
    "mixtral": GQA | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": GQA,
    "qwen2_moe": GQA | EXPERTS | {"shared_expert_intermediate_size": 40},
    "qwen3": GQA,
    "qwen3_moe": GQA | EXPERTS,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "gemma": GQA,
    "gemma2": GQA,
    "gemma3_text": GQA,
    "gpt2": GPT2,
    "gpt_neox": SIZES,
    "granite": SIZES,
    "olmo2": GQA,
    "phi": GQA,
    "phi3": GQA | {"pad_token_id": 0},
    "starcoder2": GQA,
}
UNTIED, TIED, WIDE = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}, {"head_dim": 24}
BIASED, WINDOW = {"attention_bias": True}, {"sliding_window": 8}
GATE = {"use_sliding_window": True, "sliding_window": 8}
VARIANTS = {
    "llama": [TIED, WIDE, BIASED, {"mlp_bias": True}, {"num_key_value_heads": 1}, {"num_key_value_heads": None}],
    "mistral": [TIED, WIDE, WINDOW, {"sliding_window": None}, {"head_dim": None}],
    "mixtral": [TIED, WIDE, WINDOW, {"num_local_experts": 2}],
    "qwen2": [TIED, WIDE, GATE, GATE | {"max_window_layers": 1}, GATE | {"layer_types": KINDS}],
    "qwen2_moe": [
        TIED,
        WIDE,
        {"qkv_bias": False},
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [0, 3]},
        {"mlp_only_layers": [0, 1, 2, 3]},
        GATE,
        GATE | {"max_window_layers": 2},
    ],
    "qwen3": [TIED, WIDE, BIASED, GATE | {"max_window_layers": 3}],
    "qwen3_moe": [TIED, WIDE, BIASED, GATE, {"decoder_sparse_step": 3, "mlp_only_layers": [2]}],
    "deepseek_v2": [TIED, BIASED, {"q_lora_rank": None}, BIASED | {"q_lora_rank": None}, {"n_shared_experts": 1}],
    "deepseek_v3": [TIED, BIASED, {"q_lora_rank": None}, {"first_k_dense_replace": 4}, {"first_k_dense_replace": 0}],
    "gemma": [UNTIED, WIDE, BIASED],
    "gemma2": [UNTIED, WIDE, BIASED, WINDOW, {"layer_types": KINDS}],
    "gemma3_text": [UNTIED, WIDE, BIASED, WINDOW, {"sliding_window_pattern": 2}, {"layer_types": KINDS}],
    "gpt2": [UNTIED, {"n_inner": 100}, {"n_inner": None}],
    "gpt_neox": [TIED, {"attention_bias": False}],
    "granite": [TIED, WIDE, BIASED, {"mlp_bias": True}, {"num_key_value_heads": 2}],
    "olmo2": [TIED, WIDE, BIASED, {"num_key_value_heads": 1}],
    "phi": [TIED, {"qk_layernorm": True}, {"num_key_value_heads": None}],
    "phi3": [TIED, WIDE, WINDOW],
    "starcoder2": [UNTIED, WIDE, WINDOW, {"use_bias": False}],
}
CASES = [(family, BASE[family] | change) for family in BASE for change in [{}, *VARIANTS[family]]]
SKETCH = BASE["llama"] | {"model_type": "llama"}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def official(family, config, device="meta"):
    """Return the transformers model of a config."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config))


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


# ------------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("id", TABLES)
def test_a_built_in_model_has_the_parameters_of_its_class(id):
    config = dict(TABLES[id]["config"])
    assert model(id).parameters == (counted := count(official(config.pop("model_type"), config)))
    assert GOLDEN.get(id) == counted, f"GOLDEN of tests/test_models.py wants {id} with its number of parameters"


def test_every_family_has_cases():
    assert set(BASE) == set(VARIANTS) == set(FAMILIES)


@pytest.mark.parametrize("family, config", CASES, ids=lambda part: part if isinstance(part, str) else "")
def test_a_tiny_model_has_the_parameters_and_the_cache_of_its_class(family, config):
    ours = load(config | {"model_type": family})
    network = official(family, config)
    assert ours.parameters == count(network)
    layers = DynamicCache(config=network.config).layers
    windows = [getattr(layer, "sliding_window", None) for layer in layers]
    assert len(windows) == ours.n_layers
    assert [w for w in windows if w is not None] == [ours.window] * ours.window_layers
    assert ours.tied == network.config.tie_word_embeddings


@pytest.mark.parametrize("family", BASE)
def test_the_cache_holds_the_keys_and_values_of_its_class(family):
    tokens = 3
    ours = load(BASE[family] | {"model_type": family})
    network = official(family, BASE[family], "cpu").eval()
    cache = DynamicCache(config=network.config)
    with torch.no_grad():
        network(torch.ones(1, tokens, dtype=torch.long), cache=cache, use_cache=True)
    for layer in cache.layers:
        elements = layer.keys.numel() + layer.values.numel()
        if ours.mla:
            assert elements == tokens * (ours.mla.kv_rank + ours.mla.d_rope)
        else:
            assert layer.keys.shape == layer.values.shape == (1, ours.h_kv, tokens, ours.d_h)
            assert elements == tokens * 2 * ours.h_kv * ours.d_h
    assert len(cache.layers) == ours.n_layers


@pytest.mark.parametrize(
    "family, missing",
    [
        ("llama", "num_key_value_heads"),
        ("mistral", "num_key_value_heads"),
        ("mistral", "sliding_window"),
        ("qwen2", "num_key_value_heads"),
        ("qwen3", "num_key_value_heads"),
        ("qwen2_moe", "num_key_value_heads"),
        ("qwen3_moe", "num_key_value_heads"),
        ("gemma", "num_key_value_heads"),
        ("gemma2", "num_key_value_heads"),
        ("gemma3_text", "num_key_value_heads"),
        ("gemma3_text", "num_attention_heads"),
        ("gemma3_text", "vocab_size"),
        ("starcoder2", "num_key_value_heads"),
        ("olmo2", "num_key_value_heads"),
        ("phi", "num_key_value_heads"),
        ("phi3", "num_key_value_heads"),
        ("deepseek_v2", "first_k_dense_replace"),
        ("deepseek_v3", "first_k_dense_replace"),
        ("deepseek_v2", "q_lora_rank"),
        ("deepseek_v3", "q_lora_rank"),
        ("gpt2", "n_positions"),
    ],
)
def test_a_key_that_is_missing_takes_the_default_of_the_class_and_is_said(family, missing):
    heads = {"n_head": 32, "n_embd": 96} if family == "gpt2" else {"num_attention_heads": 32, "hidden_size": 96}
    if FAMILIES[family].mla:
        heads["num_key_value_heads"] = 32
    elif FAMILIES[family].head_dim:
        heads |= WIDE
    config = without(BASE[family] | heads, missing)
    ours, network = load(config | {"model_type": family}), official(family, config)
    assert ours.parameters == count(network)
    assert ours.h_kv == getattr(network.config, "num_key_value_heads", ours.h)
    assert [said for said in ours.assumed if said.startswith(f"{missing} is not in the file: taken as ")]


def test_every_default_that_is_used_is_said():
    every = "num_attention_heads (4), every head has its own keys and values"
    assert load(SKETCH).assumed == (
        f"num_key_value_heads is not in the file: taken as {every}",
        "head_dim is not in the file: taken as hidden_size / num_attention_heads (16)",
        "tie_word_embeddings is not in the file: taken as false, the default of llama",
        "attention_bias is not in the file: taken as false, the default of llama",
        "mlp_bias is not in the file: taken as false, the default of llama",
    )
    full = {"num_key_value_heads": 4, "head_dim": 16, "attention_bias": False, "mlp_bias": False}
    assert load(SKETCH | full | UNTIED).assumed == ()
    assert load(SKETCH | full | UNTIED | {"head_dim": None}).assumed[0].startswith("head_dim is null: taken as")
    quantized = load(SKETCH | {"quantization_config": {"bits": 4}})
    assert "you choose the data type" in quantized.assumed[-1] and quantized.parameters == load(SKETCH).parameters
    unknown = load(without(SKETCH, "max_position_embeddings"))
    assert unknown.max_context is None and "max_position_embeddings" in " ".join(unknown.assumed)
    assert "left out" in model("deepseek-v3").assumed[-1]


def test_windows():
    assert (model("mistral-7b").window, model("mistral-7b").window_layers) == (4096, 32)
    assert (model("gemma-2-9b").window, model("gemma-2-9b").window_layers) == (4096, 21)
    assert (model("qwen2.5-7b").window, model("qwen2.5-7b").window_layers) == (None, 0)


def test_the_parts_of_deepseek_v3():
    ours = model("deepseek-v3")
    assert ours.mla == Mla(q_rank=1536, kv_rank=512, d_nope=128, d_rope=64, d_v=128)
    assert ours.moe == Moe(experts=256, top_k=8, d_ff=2048, shared_d_ff=2048, layers=58, shared_gate=False)
    assert (ours.h, ours.h_kv, ours.d_h) == (128, 128, 192)


# ------------------------------------------------------------------------------------------------------ built in


def test_every_built_in_model_says_where_it_comes_from():
    assert set(TABLES) == set(models.models())
    assert set(TABLES) == set(GOLDEN), "GOLDEN of tests/test_models.py wants each model with its number of parameters"
    for id, table in TABLES.items():
        assert set(table) == {"title", "source", "date", "strength", "config"}, id
        assert len(table["source"]) > 20 and re.search(r"\bread \d{4}-\d\d-\d\d$", table["date"]), id
        assert table["strength"] in {"primary", "transcription"}, id
        assert (model(id).id, model(id).title, model(id).source) == (id, table["title"], table["source"])


def test_the_table_cannot_be_changed_by_a_reader():
    with pytest.raises(TypeError):
        models.models()["mine"] = model("gpt2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        model("gpt2").title = "mine"


def test_an_unknown_model():
    with pytest.raises(ModelError, match="'llama-3-8B', did you mean 'llama-3-8b'.*one of: llama-2-7b"):
        model("llama-3-8B")
    with pytest.raises(ModelError, match="'llama-3-8B', did you mean 'llama-3-8b'.*path of a config.json"):
        load("llama-3-8B")


# --------------------------------------------------------------------------------------------------------- files


def test_a_file_a_folder_an_id_and_a_dict(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(SKETCH))
    for source in (path, folder, str(path), str(folder)):
        ours = load(source)
        assert (ours.id, ours.title, ours.source) == ("my-model", "my-model", str(path))
        assert ours.parameters == load(SKETCH).parameters
    assert load("gpt2") == model("gpt2")


def test_an_id_is_never_a_path(tmp_path, monkeypatch):
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(SKETCH))
    monkeypatch.chdir(tmp_path)
    assert load("gpt2").family == "gpt2"
    assert load("./gpt2").family == load(Path("gpt2")).family == "llama"


@pytest.mark.parametrize(
    "content, parts",
    [
        ("{", ["not valid JSON", "line 1", "; correct the file there"]),
        ("[" * 100_000, ["not valid JSON", "; correct the file there"]),
        (b"\xff\xfe", ["not valid JSON", "utf-8", "; give the path of a config.json"]),
        ("[1]", ["[1] is not an object"]),
        ("null", ["null is not an object"]),
        ('{"model_type": "llama", "hidden_size": NaN}', ["hidden_size: nan is not a whole number"]),
        ('{"hidden_size": 1' + "0" * 5000 + "}", ["not valid JSON"]),
        (" " * 2**24 + "{}", ["too many", "give the path of one"]),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, content, parts):
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < 500
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize("source", ["", " ", "\0", "x" * 5000, 3, None, ["gpt2"], b"gpt2"])
def test_what_is_no_source(source):
    with pytest.raises(ModelError, match="^model: .*config.json"):
        load(source)


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="none.json: No such file.*; give the path of a config.json"):
        load(tmp_path / "none.json")
    with pytest.raises(ModelError, match="none/config.json: No such file"):
        load("none/config.json")
    with pytest.raises(ModelError, match="config.json: No such file"):
        load(tmp_path)


# -------------------------------------------------------------------------------------------------- wrong configs


def changed(family="llama", **change):
    return BASE[family] | {"model_type": family} | change


BAD = {
    "no type": (without(SKETCH, "model_type"), ["config: model_type: missing", "llama, mistral", 'as_type="llama"']),
    "unknown type": (changed(model_type="lama"), ["model_type: unknown 'lama'", "did you mean 'llama'?", "--as llama"]),
    "type not text": (changed(model_type=["llama"]), ["model_type: unknown ['llama']"]),
    "huge type": (changed(model_type=10**5000), ["model_type: unknown a int that is too long to print"]),
    "missing": (without(SKETCH, "hidden_size"), ["hidden_size: missing; add hidden_size = "]),
    "text": (changed(hidden_size="64"), ["hidden_size: '64' is not a whole number", "such as 32"]),
    "float": (changed(num_attention_heads=4.0), ["num_attention_heads: 4.0 is not a whole number; write 4"]),
    "fraction": (changed(num_attention_heads=4.5), ["4.5 is not a whole number"]),
    "inf": (changed(vocab_size=float("inf")), ["vocab_size: inf is not a whole number"]),
    "true": (changed(num_hidden_layers=True), ["num_hidden_layers: true is not a whole number"]),
    "null": (changed(hidden_size=None), ["hidden_size: missing"]),
    "null for a default": (changed("mistral", num_key_value_heads=None), ["null is not a whole number"]),
    "zero": (changed(vocab_size=0), ["vocab_size: 0 is less than 1"]),
    "negative": (changed(num_key_value_heads=-4), ["num_key_value_heads: -4 is less than 1"]),
    "absurd": (changed(intermediate_size=10**10), ["intermediate_size: 10000000000 is more than", "check the digits"]),
    "absurd digits": (changed(hidden_size=10**5000), ["hidden_size: a int that is too long to print is more than"]),
    "layers": (changed(num_hidden_layers=10**6), ["num_hidden_layers: 1000000 is more than 10000"]),
    "tie": (changed(tie_word_embeddings=1), ["tie_word_embeddings: 1 is neither true nor false"]),
    "tie null": (changed(tie_word_embeddings=None), ["tie_word_embeddings: null is neither"]),
    "heads": (changed(num_key_value_heads=3), ["num_attention_heads: 4 is not a multiple of num_key_value_heads (3)"]),
    "assumed heads": (
        without(changed("qwen2"), "num_key_value_heads"),
        ["not a multiple of num_key_value_heads (32)", "num_key_value_heads is not in the file: taken as 32"],
    ),
    "head_dim": (changed(num_attention_heads=5), ["head_dim: missing", "64 is not a multiple of 5 heads; add it"]),
    "fixed head_dim": (changed("gpt_neox", head_dim=24), ["head_dim: 24", "always has hidden size / heads, 16"]),
    "top_k": (changed("mixtral", num_experts_per_tok=5), ["num_experts_per_tok: 5 is more than the 4 experts"]),
    "no experts": (without(changed("mixtral"), "num_local_experts"), ["num_local_experts: missing"]),
    "two names": (changed("mixtral", num_experts=5), ["num_local_experts: 4 differs from num_experts"]),
    "moe freq": (changed("deepseek_v3", moe_layer_freq=2), ["moe_layer_freq: only 1 is known"]),
    "dense": (changed("deepseek_v3", first_k_dense_replace=5), ["first_k_dense_replace: 5 is more than 4"]),
    "mla heads": (changed("deepseek_v3", num_key_value_heads=2), ["num_key_value_heads: 2, but in deepseek_v3"]),
    "mlp_only": (changed("qwen3_moe", mlp_only_layers=[4]), ["mlp_only_layers: [4] is not a list of layers"]),
    "kinds": (changed("qwen2", layer_types=["full_attention"]), ["layer_types", "not a list of 4 texts"]),
    "linear": (changed("qwen3", layer_types=[*KINDS[1:], "linear_attention"]), ["'linear_attention' layers change"]),
    "no window": (changed("qwen2", layer_types=KINDS), ["sliding_window: no window, but 1 layers slide"]),
    "null window": (changed("gemma2", sliding_window=None), ["sliding_window: no window, but 2 layers slide"]),
    "no sliding": (changed(layer_types=KINDS), ["layer_types: 1 layers slide, but llama has 0"]),
    "all sliding": (changed("mistral", layer_types=KINDS), ["layer_types: 1 layers slide, but mistral has 4"]),
    "window": (changed(sliding_window=8), ["sliding_window: 8 means a sliding window, which llama does not have"]),
    "bias": (changed("mistral", attention_bias=True), ["attention_bias: true means biases, which mistral does not"]),
    "latent": (changed(kv_lora_rank=8), ["kv_lora_rank: 8 means latent attention (MLA)"]),
    "experts": (changed(num_experts=8), ["num_experts: 8 means experts"]),
    "mamba": (changed(mamba_d_state=8), ["mamba_d_state: 8 means layers that are not attention"]),
    "both ways": (changed("gemma3_text", use_bidirectional_attention=True), ["attention in both directions"]),
    "encoder": (changed("gpt2", add_cross_attention=True), ["add_cross_attention: true means an encoder"]),
    "text_config": (changed(text_config=3), ["text_config: 3 is not an object"]),
    "nested": ({"model_type": "x", "text_config": changed(vocab_size=0)}, ["text_config.vocab_size: 0 is less than 1"]),
    "nested type": ({"model_type": "x", "text_config": changed(model_type="y")}, ["model_type: unknown 'y'"]),
}


@pytest.mark.parametrize("config, parts", BAD.values(), ids=BAD)
def test_a_wrong_config_names_the_field_and_the_remedy(config, parts):
    with pytest.raises(ModelError) as caught:
        load(config)
    message = str(caught.value)
    assert message.startswith("config: ") and "\n" not in message
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    "said", ["llama4", "mistral3", "gemma3", "gemma4_text", "deepseek_v32", "qwen3_next", "phimoe"]
)
def test_a_type_of_another_architecture_is_not_taken_for_a_slip(said):
    for config in (changed(model_type=said), {"model_type": "x", "text_config": changed(model_type=said)}):
        with pytest.raises(ModelError, match=f"unknown '{said}'; one of: llama, mistral") as caught:
            load(config)
        assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("said, meant", [("lama", "llama"), ("Qwen3-MoE", "qwen3_moe"), ("gpt-neox", "gpt_neox")])
def test_a_slip_in_a_type_is_named(said, meant):
    with pytest.raises(ModelError, match=f"unknown '{said}', did you mean '{meant}'"):
        load(changed(model_type=said))


def test_a_wrong_file_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(changed(vocab_size=0)))
    with pytest.raises(ModelError, match="config.json: vocab_size: 0 is less than 1"):
        load(tmp_path)


def test_as_type():
    yi = changed(model_type="Yi")
    assert load(yi, as_type="llama").parameters == load(SKETCH).parameters
    assert load(yi, as_type="llama").assumed[0] == "model_type is 'Yi': read as llama, because as_type says so"
    assert load("llama-2-7b", as_type="mistral").window == 4096
    with pytest.raises(ModelError, match="as_type: unknown 'lama', did you mean 'llama'"):
        load(yi, as_type="lama")
    with pytest.raises(ModelError, match="kv_lora_rank: 16 means latent attention"):
        load(changed("deepseek_v3"), as_type="llama")


def test_the_language_model_inside_another():
    inner = without(GQA, "num_attention_heads", "num_key_value_heads", "vocab_size")
    gemma3 = load({"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 3}})
    assert (gemma3.family, gemma3.h, gemma3.h_kv, gemma3.V) == ("gemma3_text", 8, 4, 262208)
    assert gemma3.assumed[0].startswith("text_config holds the language model")
    llava = {"model_type": "llava", "text_config": SKETCH}
    assert load(llava).parameters == load(SKETCH).parameters
    assert load(llava | TIED).tied and not load(llava).tied


@pytest.mark.parametrize(
    "change, part",
    [
        ({"h_kv": 3}, "num_attention_heads: 32 is not a multiple of num_key_value_heads (3)"),
        ({"d": 0}, "d: 0 is less than 1"),
        ({"n_layers": 32.0}, "n_layers: 32.0 is not a whole number; write 32"),
        ({"V": None}, "V: null is not a whole number"),
        ({"norm_parameters": -1}, "norm_parameters: -1 is less than 0"),
        ({"window": 8}, "window: 8 in 0 of 32 layers"),
        ({"window": 8, "window_layers": 33}, "window: 8 in 33 of 32 layers"),
        ({"moe": Moe(2, 3, 8, 0, 32, False)}, "num_experts_per_tok: 3 is more than the 2 experts"),
        ({"moe": Moe(0, 3, 8, 0, 32, False)}, "moe.experts: 0 is less than 1"),
        ({"moe": Moe(4, 3, 8, 0, 33, False)}, "moe.layers: 33 is more than the 32 layers"),
        ({"mla": Mla(None, 0, 1, 1, 1)}, "mla.kv_rank: 0 is less than 1"),
    ],
)
def test_a_wrong_model_in_code(change, part):
    with pytest.raises(ModelError) as caught:
        dataclasses.replace(model("llama-3-8b"), **change)
    assert part in str(caught.value)


# ---------------------------------------------------------------------------------------------------------- fuzz

SCALARS = st.none() | st.booleans() | st.integers() | st.integers(0, 64) | st.floats() | st.text(max_size=5)
SCALARS |= st.sampled_from(["full_attention", "sliding_attention", *FAMILIES, 10**4000])
JSON = st.recursive(SCALARS, lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=5), part))
KNOWN = sorted({key for _, config in CASES for key in config} | set(models._CHANGES) | {"model_type", "text_config"})
KEYS = st.sampled_from(KNOWN) | st.text(max_size=5)
TYPES = st.none() | st.sampled_from(sorted(FAMILIES))


def outcome(config, as_type=None):
    try:
        return load(config, as_type=as_type)
    except ModelError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(config=st.dictionaries(KEYS, JSON, max_size=12) | JSON, as_type=TYPES)
def test_any_json_gives_a_model_or_a_message(config, as_type):
    config = config if isinstance(config, dict) else {"text_config": config}
    first = outcome(config, as_type)
    assert isinstance(first, Model) or (first and "\n" not in first)
    assert outcome(config, as_type) == first


@settings(max_examples=600, deadline=None)
@given(case=st.sampled_from(CASES), cut=st.sets(KEYS, max_size=2), put=st.dictionaries(KEYS, JSON, max_size=2))
def test_a_damaged_config_gives_a_model_or_a_message(case, cut, put):
    config = without(case[1] | {"model_type": case[0]} | put, *cut)
    first = outcome(config)
    assert isinstance(first, str) or first.parameters > 0
    assert outcome(config) == first


NASTY = [
    None,
    True,
    0,
    -1,
    1,
    7,
    32.0,
    1e300,
    float("nan"),
    float("inf"),
    10**10,
    10**5000,
    "",
    "4",
    "\0",
    [],
    [[]],
    {},
]
NASTY += [[None], [0], ["full_attention"] * 4, [True] * 4, {"a": {}}]


@pytest.mark.parametrize("family", BASE)
def test_each_key_damaged_in_each_way_gives_a_model_or_a_message(family):
    """Every key that the family has or that some family knows; a message names the key or one that it must fit."""
    config, messages = BASE[family] | {"model_type": family}, 0
    for key in sorted({*KNOWN, "quantization_config", "num_nextn_predict_layers"}):
        for found in [outcome(without(config, key)), *(outcome(config | {key: value}) for value in NASTY)]:
            assert isinstance(found, Model) or (found.startswith("config: ") and "\n" not in found), (key, found)
            messages += isinstance(found, str)
    assert messages > 10 * len(BASE[family])


# --------------------------------------------------------------------------------------------------------- module


def test_doctests():
    result = doctest.testmod(models)
    assert result.attempted >= 6 and result.failed == 0


def test_importing_models_needs_neither_torch_nor_numpy():
    code = "import sys, rooflab.models; sys.exit(bool({'torch', 'numpy', 'sympy', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
