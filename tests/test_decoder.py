"""The decoder against transformers' own classes, its counts against torch's dispatcher, and every error."""

import os
import re
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch

from rooflab import timing
from rooflab.decoder import (
    CAPTURE_RULES,
    WAYS,
    Cache,
    DecoderError,
    Recompiles,
    Weights,
    capture,
    compiled,
    graph,
    kernel_counts,
    rms_norm,
    step,
)
from rooflab.models import load, model

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test may ask the network

# No two sizes are alike.
TINY = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY |= {"intermediate_size": 80, "vocab_size": 97, "max_position_embeddings": 128}
# Of the angles of d_h = 16, the first stays, the second is between, and the others are divided by the factor.
SCALED = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 32}
CASES = {
    "llama": ("llama", TINY),
    "llama3 rope": ("llama", TINY | {"rope_parameters": SCALED}),
    "linear rope": ("llama", TINY | {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    "every head its own keys, wide heads": ("llama", TINY | {"num_key_value_heads": 4, "head_dim": 20}),
    "tied": ("llama", TINY | {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "mistral": ("mistral", TINY | {"sliding_window": None}),
}
TOKENS, CAPACITY = 12, 17


@pytest.fixture(autouse=True)
def one_thread():
    """Run on one thread: operations this small take longer on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def official(family, config, dtype=torch.float32):
    """Return the transformers model of a config, with weights that leave no part of it without effect."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config), attn_implementation="sdpa")
    with torch.no_grad():
        for part in network.parameters():
            part.normal_(std=part.shape[1] ** -0.5) if part.dim() == 2 else part.normal_(1, 0.3)
    return network.to(dtype).eval()


def decoded(network, batch, masked):
    """Return the logits of transformers and ours, (tokens, B, V), each decoded one token at a time."""
    from transformers import DynamicCache

    weights = Weights.from_transformers(network)
    theirs, ours = DynamicCache(config=network.config), Cache.empty(weights, batch, CAPACITY)
    prompt = torch.randint(97, (TOKENS, batch), generator=torch.Generator().manual_seed(1))
    pairs = []
    for position, tokens in enumerate(prompt):
        with torch.no_grad():
            expected = network(tokens[:, None], past_key_values=theirs).logits[:, -1]
        ours.seek(position)
        pairs.append((expected, step(weights, ours, tokens, None if masked else position + 1)))
    return (torch.stack(each) for each in zip(*pairs, strict=True))


def made(batch=3, capacity=CAPACITY, dtype=torch.float32, layers=None, device="cpu", **config):
    """Return random weights, a filled cache at position 4, and tokens."""
    weights = Weights.random(load({"model_type": "llama"} | TINY | config), device, dtype, seed=0, layers=layers)
    cache = Cache.empty(weights, batch, capacity)
    cache.fill(seed=1)
    cache.seek(4)
    return weights, cache, torch.arange(batch, device=device)


# ------------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("masked", [False, True], ids=["length", "mask"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case, dtype, tolerance, batch, masked):
    expected, found = decoded(official(*CASES[case], dtype), batch, masked)
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("masked", [False, True], ids=["length", "mask"])
def test_logits_in_bf16_are_as_close_to_fp32_as_those_of_transformers(masked):
    network = official(*CASES["llama3 rope"])
    exact, _ = decoded(network, 3, masked)
    rounded, found = decoded(network.to(torch.bfloat16), 3, masked)
    error, theirs = ((each.float() - exact).square().mean().sqrt() for each in (found, rounded))
    assert error < 1.5 * theirs < 0.1


def test_the_norm_rounds_where_that_of_transformers_does():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm, x = LlamaRMSNorm(64, eps=1e-3).to(torch.bfloat16), torch.randn(50, 64).to(torch.bfloat16)
    norm.weight.data.normal_(1, 0.3)
    assert torch.equal(rms_norm(x, norm.weight, 1e-3), norm(x))


def test_a_tied_head_is_the_embedding():
    for weights in (Weights.from_transformers(official(*CASES["tied"])), made(tie_word_embeddings=True)[0]):
        assert weights.head is weights.embedding


@pytest.mark.parametrize("length", [5, None])
def test_a_step_may_be_repeated_and_sees_nothing_after_its_position(length):
    weights, cache, tokens = made()
    first = step(weights, cache, tokens, length)
    for keys, values in zip(cache.k, cache.v, strict=True):
        keys[:, :, 5:], values[:, :, 5:] = 100.0, 100.0
    assert torch.equal(step(weights, cache, tokens, length), first)


def test_random_weights_keep_the_size_of_activations_and_repeat():
    weights, cache, tokens = made(num_hidden_layers=32, dtype=torch.bfloat16)
    assert 0.5 < step(weights, cache, tokens, 5).float().std() < 2
    again = made(num_hidden_layers=32, dtype=torch.bfloat16)[0]
    assert all(map(torch.equal, weights.tensors(), again.tensors()))
    assert {tensor.dtype for tensor in weights.tensors()} == {torch.bfloat16}


@pytest.mark.parametrize("tied", [False, True])
def test_random_weights_are_as_many_as_the_models_parameters(tied):
    weights, *_ = made(tie_word_embeddings=tied)
    assert sum(tensor.numel() for tensor in weights.tensors()) == weights.model.parameters
    assert len(made(layers=2)[0].layers) == 2


@pytest.mark.parametrize("id", ["llama-2-7b", "llama-3-8b", "llama-2-70b"])
def test_weights_of_whole_models(id):
    """On the meta device, which draws nothing."""

    class Meta:
        def manual_seed(self, _):
            return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", lambda device: Meta())
        weights = Weights.random(model(id), "meta", torch.bfloat16, seed=0)
    assert sum(tensor.numel() for tensor in weights.tensors()) == weights.model.parameters


# ------------------------------------------------------------------------------------------------- kernels on paper


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "dtype, length, per_layer, outside",
    [(torch.bfloat16, 5, 32, 12), (torch.bfloat16, None, 32, 16), (torch.float32, 5, 28, 10)],
)
def test_kernels_of_a_step_are_those_of_the_table(dtype, length, per_layer, outside, batch):
    for layers in (1, 2, 3):
        parts = made(batch, dtype=dtype, layers=layers)
        found = kernel_counts(lambda parts=parts: step(*parts, length))
        assert found.total() == per_layer * layers + outside
        assert found["mm"] == 4 * layers + 1 and found["index_copy_"] == 2 * layers


def test_views_and_empty_tensors_are_no_kernels():
    x = torch.ones(4, 6)
    assert not kernel_counts(lambda: (x.view(2, 12)[:, :3], x.t().expand(2, 6, 4), torch.empty(3), x.detach()))
    assert kernel_counts(lambda: x.add_(1)[0].copy_(x[1])) == {"add_": 1, "copy_": 1}


# ------------------------------------------------------------------------------------------------------------ compile


@pytest.mark.parametrize("length", [5, None])
def test_the_compiled_step_has_no_graph_break_and_the_same_numbers(length):
    weights, cache, tokens = made()
    run = compiled(weights, cache, length, backend="aot_eager")
    torch.testing.assert_close(run(tokens), step(weights, cache, tokens, length), rtol=0, atol=1e-5)
    written = [tensor[:, :, 4].clone() for tensor in (*cache.k, *cache.v)]
    cache.fill(seed=1)
    step(weights, cache, tokens, length)
    for found, tensor in zip(written, (*cache.k, *cache.v), strict=True):
        torch.testing.assert_close(found, tensor[:, :, 4], rtol=0, atol=1e-5)


HEADERS = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.mark.skipif(
    not (os.environ.get("CXX") or shutil.which("g++")) or not HEADERS.exists(),
    reason="no C++ compiler or no headers, so torch.compile's own code was not tried: apt-get install g++ python3-dev",
)
def test_torchs_own_compiler_writes_the_cache_in_place():
    from torch._inductor.utils import run_and_get_code

    weights, cache, tokens = made(capacity=1009, layers=2)
    found, code = run_and_get_code(compiled(weights, cache, 5), tokens)
    torch.testing.assert_close(found, step(weights, cache, tokens, 5), rtol=0, atol=1e-5)
    assert "1009" in "".join(code) and not re.search(r"empty_strided\w*\(\([^)]*1009", "".join(code))


def test_one_compilation_serves_all_positions_under_the_mask():
    weights, cache, tokens = made()
    run = compiled(weights, cache, backend="eager")
    with Recompiles() as seen:
        for position in range(CAPACITY):
            cache.seek(position)
            torch.testing.assert_close(run(tokens), step(weights, cache, tokens), rtol=0, atol=1e-5)
    assert seen.count == 0 and not seen.storm


def test_ways_of_many_lengths_do_not_add_up_to_a_storm():
    weights, cache, tokens = made(layers=1)
    with Recompiles() as seen:
        for length in range(1, 12):
            cache.seek(length - 1)
            compiled(weights, cache, length, backend="eager")(tokens)
    assert seen.reasons == []


@pytest.mark.parametrize("most, storm", [(3, False), (12, True)])
def test_lengths_that_change_under_a_compiled_step_are_seen_and_named(most, storm):
    torch._dynamo.reset()
    weights, cache, tokens = made(layers=1)
    careless = torch.compile(step, backend="eager", dynamic=False)
    with Recompiles() as seen:
        for length in range(1, most + 1):
            cache.seek(length - 1)
            careless(weights, cache, tokens, length)
    limit = torch._dynamo.config.recompile_limit
    assert seen.reasons == [f"length == {length}" for length in range(1, min(most, limit + 1))]
    assert seen.storm == storm


def test_a_batch_that_changes_under_a_compiled_step_names_the_shape():
    torch._dynamo.reset()
    careless = torch.compile(lambda tokens: tokens + 1, backend="eager", dynamic=False)
    with Recompiles() as seen:
        careless(torch.arange(3)), careless(torch.arange(4))
    assert seen.count == 1 and "size mismatch" in seen.reasons[0] and "expected 3, actual 4" in seen.reasons[0]


# ------------------------------------------------------------------------------------------------------------- errors

MLA = {"q_lora_rank": 28, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 18}


@pytest.mark.parametrize(
    "family, config, named",
    [
        ("llama", {"attention_bias": True}, "biases"),
        ("mistral", {"sliding_window": 8}, "a sliding window"),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}, "experts"),
        ("qwen2", {"use_sliding_window": False}, "biases"),
        ("qwen3", {"use_sliding_window": False}, "norms of queries and keys"),
        ("gemma", {"head_dim": 16}, "layers of the gemma class"),
        ("granite", {}, "layers of the granite class"),
        ("gpt_neox", {"num_key_value_heads": 4}, "biases, an MLP without a gate"),
        ("gpt2", {"num_key_value_heads": 4}, "learned positions"),
    ],
)
def test_other_models_are_refused_by_what_they_have(family, config, named):
    ours = load({"model_type": family} | TINY | config)
    with pytest.raises(DecoderError, match=f"has .*{named}.*only Llama-like"):
        Weights.random(ours, "cpu", torch.float32, seed=0)


def test_latent_attention_is_refused():
    with pytest.raises(DecoderError, match="latent attention"):
        Weights.random(model("deepseek-v3"), "cpu", torch.float32, seed=0)


@pytest.mark.parametrize(
    "family, config, named",
    [
        ("qwen2", {}, "has biases: "),
        ("qwen3", {"head_dim": 16}, "norms of queries and keys"),
        ("mistral", {"sliding_window": 8}, "a sliding window"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_type 'yarn'"),
        ("opt", {"word_embed_proj_dim": 64}, "model_type: unknown 'opt'"),
    ],
)
def test_other_transformers_models_are_refused(family, config, named):
    with pytest.raises(DecoderError, match=named):
        Weights.from_transformers(official(family, TINY | config))


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda w, c, t: step(w, c, t[:2], 5), r"tokens have shape \(2,\): .* is for \(3,\)"),
        (lambda w, c, t: step(w, c, t[:, None], 5), r"tokens have shape \(3, 1\)"),
        (lambda w, c, t: step(w, c, t.int(), 5), "tokens are torch.int32 on cpu: convert them to int64 on cpu"),
        (lambda w, c, t: step(w, c, t, CAPACITY + 1), "cache holds 17 tokens, position 17: make it with capacity 18"),
        (lambda w, c, t: step(w, c, t, 7), r"length 7 with the cache at position 4: .* 5 tokens; call cache.seek\(6\)"),
        (lambda w, c, t: step(w, c, t, 0), "length 0 with"),
        (lambda w, c, t: c.seek(CAPACITY), "cache holds 17 tokens, position 17: it must be 0 to 16, or"),
        (lambda w, c, t: c.seek(-1), "position -1"),
        (lambda w, c, t: Cache.empty(w, 0, 8), "a cache for 0 sequences of 8 tokens"),
        (lambda w, c, t: made(layers=4), "layers is 4: config has 3, give 1 to 3"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message):
    with pytest.raises(DecoderError, match=message):
        wrong(*made())


def test_a_compiled_step_checks_too():
    weights, cache, tokens = made()
    run = compiled(weights, cache, 5, backend="eager")
    with pytest.raises(DecoderError, match=r"for \(3,\)"):
        run(tokens[:1])
    cache.seek(7)
    with pytest.raises(DecoderError, match="length 5 with the cache at position 7"):
        run(tokens)


def test_no_compiler_is_named():
    import torch._inductor.config as inductor

    weights, cache, tokens = made(layers=1)
    with (
        inductor.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}),
        pytest.raises(DecoderError, match=r"needs a C\+\+ compiler, .* variable CXX"),
    ):
        compiled(weights, cache, 5)(tokens)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("Failed to find C compiler. Please specify"), "needs a C compiler, .* variable CC$"),
        (RuntimeError("main.cpp:70:10: fatal error: Python.h: No such file or directory"), r"needs Python's headers"),
        (ZeroDivisionError("other"), "other"),
    ],
)
def test_of_errors_while_compiling_only_what_is_missing_is_translated(error, said):
    def backend(graph, inputs):
        raise error

    weights, cache, tokens = made(layers=1)
    with pytest.raises(Exception, match=said) as caught:
        compiled(weights, cache, 5, backend=backend)(tokens)
    assert isinstance(caught.value, DecoderError) == (said != "other")


# ------------------------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("way", ["graph", "reduce_overhead"])
def test_without_a_gpu_there_are_no_graphs(way, monkeypatch):
    monkeypatch.setattr(timing, "has_gpu", lambda: False)
    with pytest.raises(DecoderError, match="needs a CUDA GPU, and torch sees none here: use eager or compiled"):
        WAYS[way](*made()[:2], 5)
    with pytest.raises(DecoderError, match="needs a CUDA GPU"):
        capture(lambda: None)


def failing(first, last=None):
    """Return a stand-in for timing.graphed: the call fails, and then the end of the capture does."""

    def graphed(call):
        try:
            raise RuntimeError(first)
        finally:
            if last:
                raise RuntimeError(last)

    return graphed


INVALID = "CUDA error: operation failed due to a previous error during capture"


CAPTURES = [
    (
        "CUDA error: operation not permitted when stream is capturing\nSearch for it",
        r"the host waited .* \.item\(\)",
    ),
    ("Cannot copy between CPU and CUDA tensors during CUDA graph capture", "memory that is not pinned"),
    ("CUDA error: operation would make the legacy stream depend on a capturing blocking stream", "default stream"),
    ("CUDA error: dependency created on uncaptured work in another stream", "a stream that is not captured"),
    ("CUDA error: capturing stream has unjoined work", "forked and not joined"),
    ("Attempt to increase offset for a CUDA generator not in capture mode.", "random numbers"),
    ("CUDA out of memory. Tried to allocate 2.00 GiB", "no memory left"),
    ("something new", "cannot be part of a graph"),
]


@pytest.mark.parametrize("said, rule", CAPTURES)
@pytest.mark.parametrize("last", [None, INVALID])
def test_a_capture_that_fails_names_the_rule_and_what_torch_said(said, rule, last, monkeypatch):
    monkeypatch.setattr(timing, "has_gpu", lambda: True)
    monkeypatch.setattr(timing, "graphed", failing(said, last))
    with pytest.raises(DecoderError, match=rule) as caught:
        capture(lambda: None)
    assert str(caught.value).endswith(f"torch says: {said.splitlines()[0]}")


def test_every_rule_has_a_case():
    assert not [text for text in CAPTURE_RULES if not any(text in said for said, _ in CAPTURES)]


def test_what_fails_without_a_capture_is_not_called_one(monkeypatch):
    monkeypatch.setattr(timing, "has_gpu", lambda: True)
    with pytest.raises(RuntimeError, match="must match") as caught:
        capture(lambda: torch.ones(2) + torch.ones(3))
    assert not isinstance(caught.value, DecoderError)


def test_a_graph_reads_its_own_tokens_and_the_position_of_the_replay(monkeypatch):
    """With a replay that calls again, as a graph would."""

    def graphed(call):
        for _ in range(4):
            call()
        return call

    monkeypatch.setattr(timing, "has_gpu", lambda: True)
    monkeypatch.setattr(timing, "graphed", graphed)
    weights, cache, tokens = made()
    run, mine = graph(weights, cache), tokens.clone()
    for position in (4, 9):
        cache.seek(position)
        assert torch.equal(run(tokens + 1), step(weights, cache, mine + 1))
    with pytest.raises(DecoderError, match=r"for \(3,\)"):
        run(tokens[:2])


# ---------------------------------------------------------------------------------------------------------------- GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("length", [200, None])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_numbers_of_fp64_on_a_gpu(way, length):
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 512}
    parts = {"device": "cuda", "capacity": 256, "dtype": torch.bfloat16}
    weights, cache, tokens = made(**parts, **sizes)
    cache.seek(199)
    expected = step(weights, cache, tokens, 200).float()
    run = WAYS[way](weights, cache, length)
    for _ in range(4):  # torch captures its own graphs at the second call
        found = run(tokens).float().clone()
    assert (found - expected).square().mean().sqrt() < 0.05 * expected.std()
    if length is None:
        cache.seek(100)
        expected = step(weights, cache, tokens, 101).float()
        assert (run(tokens).float() - expected).square().mean().sqrt() < 0.05 * expected.std()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "call, rule",
    [
        (lambda x: x.sum().item(), "the host waited"),
        (lambda x: x.nonzero(), "the host waited"),
        (lambda x: x.cpu(), "not pinned"),
    ],
    ids=["item", "nonzero", "cpu"],
)
def test_a_capture_that_fails_on_a_gpu_names_the_rule(call, rule):
    x = torch.ones(8, device="cuda")
    with pytest.raises(DecoderError, match=rule):
        capture(lambda: call(x))
    assert x.sum().item() == 8  # and leaves the GPU in order


@pytest.mark.gpu
@needs_gpu
def test_kernels_on_a_gpu_are_those_of_the_table_and_few_more():
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 512}
    weights, cache, tokens = made(device="cuda", capacity=256, dtype=torch.bfloat16, **sizes)
    expected = kernel_counts(lambda: step(weights, cache, tokens, 5)).total()
    found = timing.count_launches(lambda: step(weights, cache, tokens, 5))
    assert expected <= found <= expected + 3 * 4  # SDPA's second kernel, split matrix products
