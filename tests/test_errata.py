"""Each erratum, of the notes or of this book: the right figure from the package, its label on the page, its section.

The expected values are written out: from the derivation beside them, a data sheet or the paper that the page cites.
"""

import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from pytest import approx

from rooflab import ledger, numerics, step, timing
from rooflab.experiments import dram_bytes, results
from rooflab.hardware import device, devices
from rooflab.ledger import WORKLOADS
from rooflab.models import model
from rooflab.roofline import ceilings

PAGE = Path(__file__).parents[1] / "book" / "errata.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = {
    1: "01-roofline.md",
    2: "02-decode-and-prefill.md",
    3: "03-fusion-levels.md",
    4: "04-tensor-cores-fp8.md",
    5: "05-gemm-stack.md",
    6: "06-cuda-graph-triton-compile.md",
    7: "07-flashattention-curve.md",
}
ERRATA = {}
PEAK, BANDWIDTH = 989.4e12, 3.35e12  # H100 SXM5, bf16, dense
SHAPE = {"B": 1, "h": 32, "L": 4096, "d_h": 128, "b": 2}


def erratum(label, *where):
    """Register a test of the entry `label`, which names each of `where`: a section, or a key of the bibliography."""

    def register(function):
        assert label not in ERRATA
        ERRATA[label] = (where, function)
        return function

    return register


def decode(name="llama-2-7b", **how):
    return step.decode(model(name), context=how.pop("context", 4096), **how)


def kept(x):
    return x.moved("weights") + x.moved("cache")


def ridge(name, dtype="bf16"):
    return device(name).ridge_flop_per_byte(dtype)


# Section 1 -----------------------------------------------------------------------------------------------------------


@erratum("attainable", 1)
def the_bound_is_on_the_attainable_speed():
    for intensity, want in ((1, 3.35e12), (100, 335e12), (1000, 989.4e12)):
        assert ledger.ATTAINABLE(P=PEAK, I=intensity, beta=BANDWIDTH) == approx(want)


@erratum("operational", 1, "williams2009roofline")
def operational_intensity_belongs_to_an_implementation():
    # 5 FLOP for 2 bytes read and 2 written, or for 6 read and 2 written.
    for how, want in (("on_chip", 5 / 4), ("three_pass", 5 / 8)):
        row = results("softmax").one(how, dtype="bf16", columns=32768)
        flop = 5 * row["case"]["rows"] * row["case"]["columns"]
        assert flop / dram_bytes(row) == approx(want, rel=0.05)


@erratum("ceilings", 1, "williams2009roofline")
def measured_ceilings_lie_below_the_roof():
    rates = ceilings("h200-sxm")
    assert 0.85 < rates["copy"].rate / 4.8e12 < 1
    assert rates["gemm bf16"].rate < 989.4e12


@erratum("third-roof", 1, 4)
def exponentials_are_a_third_roof():
    gpu = device("h100-sxm")
    exp = gpu.peak_flop_per_s("fp32", "exp")
    assert exp == approx(132 * 16 * 1.83e9, rel=1e-2)
    # 4 d_h FLOP at 4096 (bf16) or 8192 (FP8) per clock, against one exponential at 16 per clock.
    for dtype, per_clock in (("bf16", 4096), ("fp8", 8192)):
        want = (1 / 16) / (4 * 128 / per_clock)
        assert ledger.EXP_OVER_MMA(P=gpu.peak_flop_per_s(dtype), d_h=128, P_exp=exp) == approx(want, rel=1e-2)


@erratum("a100", 1)
def an_a100_has_three_ridges():
    assert [round(ridge(f"a100-{which}")) for which in ("80gb-sxm", "80gb-pcie", "40gb-sxm")] == [153, 161, 201]


@erratum("ridge-feeds", 1)
def the_ridge_is_the_least_intensity_at_the_peak():
    at = ridge("h100-sxm")
    assert at == approx(295.3, abs=0.1)
    assert ledger.ATTAINABLE(P=PEAK, I=at / 2, beta=BANDWIDTH) == approx(PEAK / 2)
    assert ledger.ATTAINABLE(P=PEAK, I=at * 2, beta=BANDWIDTH) == PEAK


@erratum("b200", 1, "nvidia2026exemplar")
def a_b200_has_7_7_terabytes_per_second():
    assert device("b200-hgx").bytes_per_s() == 7.7e12 and round(ridge("b200-hgx")) == 292
    assert device("gb200").bytes_per_s() == 8e12 and round(ridge("gb200")) == 306


# Section 2 -----------------------------------------------------------------------------------------------------------


@erratum("mlp", 2)
def the_step_has_an_mlp_and_a_head():
    n, d, d_ff, V, L = 32, 4096, 11008, 32000, 4096
    assert decode().flop == n * (8 * d**2 + 6 * d * d_ff + 4 * L * d) + 2 * d * V == approx(15.362e9, rel=1e-4)


@erratum("decode-intensity", 2)
def decode_has_one_flop_per_byte():
    assert decode().flop / kept(decode()) == approx(1.00, abs=5e-3)


@erratum("unit-slip", 1)
def mega_and_giga_differ():
    with pytest.raises(ledger.UnitError):
        ledger.Formula("slip", 3 * ledger.L * ledger.d * ledger.element, ledger.byte)
    assert "0.00043" in entry("unit-slip")


@erratum("gib", 1)
def weights_in_both_units():
    for name, parameters, gb, gib in (
        ("llama-2-7b", 6_738_415_616, 13.477, 12.551),
        ("llama-2-70b", 68_976_648_192, 137.953, 128.479),
    ):
        size = step.weight_bytes(model(name))
        assert size == 2 * parameters
        assert (size / 1e9, size / 2**30) == approx((gb, gib), abs=1e-3)
    assert step.cache_bytes_per_token(model("llama-2-7b")) == 512 * 2**10
    assert step.cache_bytes_per_token(model("llama-2-70b")) == 320 * 2**10


@erratum("batch", 2)
def linear_layers_cross_the_ridge_with_the_batch_and_attention_does_not():
    assert ledger.LINEAR_RIDGE_TOKENS(P=PEAK, beta=BANDWIDTH, b_w=2) == approx(295.3, abs=0.1)
    for batch in (1, 8, 64):
        found = [x for x in decode("llama-2-70b", batch=batch).operations if x.title == "attention"]
        assert found[0].flop / found[0].moved("cache") == 64 / 8


@erratum("levers", 2)
def batching_and_more_tokens_raise_the_intensity():
    one = decode("llama-3-8b", context=1024).intensity_flop_per_byte()
    assert decode("llama-3-8b", context=1024, batch=16).intensity_flop_per_byte() == approx(14 * one, rel=0.01)
    assert decode("llama-3-8b", context=1024, new_tokens=4).intensity_flop_per_byte() == approx(4 * one, rel=0.01)


@erratum("seventy", 2)
def the_70b_step():
    n, d, kv, d_ff, V, L = 80, 8192, 1024, 28672, 32000, 4096
    x = decode("llama-2-70b")
    assert x.flop == n * (4 * d**2 + 4 * d * kv + 6 * d * d_ff + 4 * L * d) + 2 * d * V == approx(148.164e9, rel=1e-4)
    assert x.flop / kept(x) == approx(1.07, abs=5e-3)


@erratum("gqa-projections", 2)
def grouped_heads_shrink_the_projections():
    four = [x for x in decode("llama-2-70b").operations if re.fullmatch("[QKVO] projection", x.title)]
    assert len(four) == 4 and sum(x.flop for x in four) == 80 * (4 * 8192**2 + 4 * 8192 * 1024)
    assert sum(x.flop for x in four) / 80 == approx(302e6, rel=1e-3)


@erratum("cache-share", 2)
def the_cache_takes_over():
    for batch, share in ((1, 0.0097), (64, 0.385), (256, 0.714)):
        x = decode("llama-2-70b", batch=batch)
        assert x.moved("cache") / kept(x) == approx(share, rel=0.01)


@erratum("paging", 2)
def paging_saves_capacity():
    free, per_token = 80e9 - 13.477e9, 2 * 32 * 4096 * 2
    assert step.cache_bytes_per_token(model("llama-2-7b")) == per_token
    assert (free // (4096 * per_token), free // (1024 * per_token)) == (30, 123)
    assert "paging" not in " ".join(inspect.signature(step.step).parameters), "no count of a step depends on it"


@erratum("mla", 2, "deepseek2025flashmla")
def latent_attention_is_beyond_the_ridge_of_the_h200():
    # 128 heads use each latent of 512 + 64 numbers of two bytes, for 576 + 512 multiply-adds.
    want = 2 * 128 * (576 + 512) / (2 * 576)
    latent, values = WORKLOADS["attention_latent"], {"B": 1, "L": 4096, "r_kv": 512, "d_r": 64}
    found = latent.flop(s=1, c=1, h=128, **values) / latent.parts["cache"](b_kv=2, **values)
    assert found == approx(want) and round(want) == 242
    assert ridge("h200-sxm") < found < ridge("h100-sxm") < 2 * found


@erratum("law", 2)
def decode_can_be_compute_bound_and_prefill_memory_bound():
    for tokens, want in ((512, 409.6), (64, 62.06)):
        flop, moved = 2 * tokens * 4096**2, 2 * (4096**2 + 2 * tokens * 4096)
        values = {"s": tokens, "B": 1, "d_in": 4096, "d_out": 4096, "b_w": 2, "b_a": 2}
        assert WORKLOADS["linear"].intensity()(**values) == approx(flop / moved) == approx(want, rel=1e-3)
    assert 62.06 < ridge("h100-sxm") < 409.6


@erratum("half-bandwidth", 2)
def quantised_weights_leave_the_cache_and_the_head():
    for name, eight, four in (("llama-2-7b", 1.73, 2.67), ("llama-2-70b", 1.97, 3.73)):
        whole = kept(decode(name))
        for how, want in (("int8", eight), ("int4-grouped", four)):
            assert whole / kept(decode(name, precision=step.Precision(weights=how))) == approx(want, abs=5e-3)


@erratum("prefill-intensity", 2)
def fused_attention_has_half_the_context():
    found = WORKLOADS["attention_prefill"].intensity()
    assert [found(**SHAPE, h_kv=32, c=c) for c in (1, 0.5)] == [4096 / 2, 4096 / 4]


@erratum("prefill-attention", 2)
def a_prompt_of_4096_tokens_is_mostly_linear_layers():
    (x,) = step.prefill(model("llama-2-7b"), prompt=4096, causal=False)
    part = 4 * 4096**2 * 4096 * 32
    assert sum(each.flop for each in x.operations if each.title == "attention") == part
    assert 1 / (1 - part / x.flop / 2) == approx(1.076, abs=2e-3)


@erratum("gemv", 1, 5)
def one_row_is_a_matrix_vector_product():
    found = WORKLOADS["gemv"].intensity()(M=4096, K=4096, b=2)
    assert found == approx(1, rel=1e-3) and found * BANDWIDTH / PEAK == approx(0.0034, abs=5e-5)


# Section 3 -----------------------------------------------------------------------------------------------------------


@erratum("naive-attention", 3)
def naive_attention_is_left_of_every_ridge():
    found = WORKLOADS["attention_naive"].intensity()
    assert found(L=4096, d_h=128, b=2) == approx(4096 * 128 / (2 * (4096 + 128))) == approx(62.06, abs=0.01)
    assert found(L=10**9, d_h=128, b=2) < 64 < min(each.ridge_flop_per_byte("bf16") for each in devices().values())


@erratum("fewer-flops", 3, "dao2022flashattention")
def flash_attention_saves_bytes_and_no_flops():
    naive, fused = WORKLOADS["attention_naive"], WORKLOADS["attention_prefill"]
    assert naive.flop(**SHAPE) == fused.flop(**SHAPE, h_kv=32, c=1) == 274_877_906_944
    assert naive.traffic["hbm"](**SHAPE) / fused.traffic["hbm"](**SHAPE, h_kv=32) == approx(33)


@erratum("reread", 1, 3)
def at_l2_the_intensity_is_the_height_of_the_tile():
    # One tile of queries reads K and V whole, as a batch of as many queries in decode would.
    tile, attend = 128, WORKLOADS["attention"]
    values = {"B": 1, "L": 4096, "d_h": 128}
    flop = attend.flop(**values, s=tile, h=1, c=1)
    assert flop / attend.parts["cache"](**values, h_kv=1, b_kv=2) == tile
    assert attend.parts["cache"](**values, h_kv=1, b_kv=2) == 2 * 2**20


@erratum("read-write", 3)
def an_addition_has_a_sixth_of_a_flop_per_byte():
    # A chain of one operation with one input has 1 FLOP for 4 bytes; a second input makes it 6.
    assert WORKLOADS["elementwise_fused"].intensity()(k=1, b=2) == 1 / 4
    assert "0.17 FLOP/byte" in entry("read-write") and round(1 / 6, 2) == 0.17


@erratum("layernorm", 3)
def layer_norm_is_a_reduction():
    x = torch.arange(1.0, 9.0, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(lambda x: torch.nn.functional.layer_norm(x, (8,)), x)
    assert (jacobian[:, 0] != 0).all(), "each output depends on the first input"


@erratum("four-saved", 3)
def four_kernels_save_three():
    apart, fused = WORKLOADS["elementwise_unfused"], WORKLOADS["elementwise_fused"]
    assert apart.launches(k=4) - fused.launches() == 3
    saved = apart.traffic["hbm"](k=4, n=1000, b=2) - fused.traffic["hbm"](n=1000, b=2)
    assert saved == 3 * 2 * 1000 * 2, "three intermediates, each written and read"


@erratum("attention-launches", 3)
def attention_saves_two_launches():
    assert WORKLOADS["attention_naive"].launches() - WORKLOADS["attention_prefill"].launches() == 2


@erratum("rewriting", 3)
def a_softmax_of_a_part_needs_rescaling():
    s, v = [1.0, 3.0], [1.0, 0.0]
    weights = [2.718281828459045**x for x in s]
    whole = sum(w * x for w, x in zip(weights, v, strict=True)) / sum(weights)
    first = v[0]  # what the first part alone gives
    assert first != approx(whole) and first * weights[0] / sum(weights) == approx(whole)


@erratum("sram", 4, "shah2024flashattention3", "zadouri2026flashattention4")
def a_tile_of_scores_is_a_quarter_of_the_registers():
    assert 4 * 128 * 128 * 4 == 65536 * 4


@erratum("merging", 3, "spector2025bubbles")
def merged_projections_save_their_input_only():
    moved = WORKLOADS["gemm"].traffic["hbm"]
    saved = 3 * moved(M=1, N=4096, K=4096, b=2) - moved(M=1, N=3 * 4096, K=4096, b=2)
    assert saved == 2 * 4096 * 2, "x is read once instead of three times"


@erratum("bitwise", 3)
def two_orders_of_addition_differ():
    x = torch.tensor([1.0, 2.0**-24, 2.0**-24])
    assert (x[0] + x[1]) + x[2] != x[0] + (x[1] + x[2])
    draw = torch.manual_seed(1)
    q, k, v = (torch.randn(rows, 64, generator=draw) for rows in (64, 512, 512))
    plain = (q @ k.T / 8).softmax(-1) @ v
    parts = [((q @ k[i : i + 64].T / 8).exp() @ v[i : i + 64]) for i in range(0, 512, 64)]
    tiled = sum(parts) / (q @ k.T / 8).exp().sum(-1, keepdim=True)
    assert torch.allclose(plain, tiled, atol=1e-5) and (plain == tiled).double().mean() < 0.5


@erratum("recompute", 3, "dao2024flashattention2")
def backward_has_five_products_with_recomputation():
    assert "2.5 times" in entry("recompute") and (4 + 1) / 2 == 2.5


@erratum("small-inputs", 3)
def launches_and_not_bytes_bound_small_inputs():
    row = {how: results("norm").one(how, rows=1, columns=4096, dtype="bf16") for how in ("eager", "compiled")}
    bytes_s = 7 * 4096 * 2 / 4.8e12
    assert row["compiled"]["time_s"] > 100 * bytes_s
    assert row["compiled"]["time_s"] < 0.5 * row["eager"]["time_s"]
    assert row["compiled"]["wall_s"] > row["eager"]["wall_s"]


@erratum("hide", 3)
def fusion_removes_bytes():
    assert WORKLOADS["attention_naive"].traffic["hbm"](**SHAPE) == 2 * 32 * (4 * 4096 * 128 + 4 * 4096**2)
    assert WORKLOADS["attention_prefill"].traffic["hbm"](**SHAPE, h_kv=32) == 2 * 32 * 4 * 4096 * 128


# Section 4 -----------------------------------------------------------------------------------------------------------


@erratum("gap", 4, "dao2024flashattention2")
def tensor_cores_of_an_a100_are_sixteen_times_as_fast():
    gpu = device("a100-80gb-sxm")
    assert gpu.peak_flop_per_s("bf16", "tensor") == 312e12 and gpu.peak_flop_per_s("fp32", "vector") == 19.5e12
    assert 312 / 19.5 == 16


@erratum("warps", 4, "dao2024flashattention2")
def rows_of_queries_are_independent_and_keys_are_not():
    assert re.search(r"FlashAttention-2 divides Q, and all warps read all of K and V", entry("warps"))
    q, k, v = torch.randn(3, 8, 4, generator=torch.manual_seed(2)).double()
    want = (q @ k.T).softmax(-1) @ v
    for rows in q.split(2):
        assert any(torch.allclose((rows @ k.T).softmax(-1) @ v, part) for part in want.split(2))
    assert not torch.allclose((q @ k[:4].T).softmax(-1) @ v[:4], want)


@erratum("rotation", 4, "shah2024flashattention3")
def the_rotation_makes_the_gain():
    paper = {name: scheme.paper_rmse for name, scheme in numerics.ATTENTION_SCHEMES.items()}
    assert paper["FP8 baseline"] == paper["FP8 without rotation"] == 2.4e-2
    assert paper["FP8 without block scales"] == 9.3e-3 and paper["FP8 FlashAttention-3"] == 9.1e-3
    here = numerics.attention_rmse([name for name in paper if name.startswith("FP8")], heads=2, L=2048)
    assert here["FP8 without rotation"] > 1.5 * here["FP8 FlashAttention-3"]
    assert here["FP8 without block scales"] == approx(here["FP8 FlashAttention-3"], rel=0.1)


@erratum("bits", 4)
def fp8_has_one_byte_per_number():
    assert numerics.FORMATS["E4M3"].bits == 8 and step.STORED_BYTES["fp8"] == 1 and step.STORED_BYTES["bf16"] == 2


@erratum("fp8-ridge", 1, 4)
def fp8_moves_the_point_and_the_ridge():
    assert ridge("h100-sxm", "fp8") == approx(591, abs=0.5)
    found = WORKLOADS["attention_prefill"].intensity()
    assert found(**(SHAPE | {"b": 1}), h_kv=32, c=1) == 4096
    assert 4096 / ridge("h100-sxm", "fp8") == approx(2048 / ridge("h100-sxm"), rel=1e-3)


@erratum("fp8-speed-up", 4, "shah2024flashattention3")
def fp8_attention_is_not_twice_as_fast():
    gpu = device("h100-sxm")
    exp = gpu.peak_flop_per_s("fp32", "exp")
    wide, narrow = (ledger.EXP_OVER_MMA(P=gpu.peak_flop_per_s(t), d_h=128, P_exp=exp) for t in ("bf16", "fp8"))
    # Products take 1 in bf16; the exponentials take `wide` in either format. Without overlap the times add up.
    least = (1 + wide) / (wide / narrow + wide)
    assert least == approx(1.5, rel=0.01)
    assert least < 1300 / 840 < 1200 / 740 < narrow / wide == approx(2, rel=1e-3)
    assert "1.62x, preprint, and 1.55x, final" in entry("fp8-speed-up")


@erratum("fp8-cache", 2, 4)
def an_fp8_cache_halves_what_most_of_the_bytes_are():
    wide, narrow = (decode(batch=64, precision=step.Precision(cache=how)) for how in ("bf16", "fp8"))
    assert narrow.moved("cache") == wide.moved("cache") / 2
    assert kept(wide) / kept(narrow) == approx(1.84, abs=5e-3)


@erratum("qserve", 4, "lin2024qserve")
def qserve_computes_in_integers():
    text = entry("qserve")
    assert "in integers" in text and "vLLM" in text
    values = torch.tensor([100.0, 1.0])  # an outlier stretches an even grid, and not that of E4M3
    codes, scale = numerics.quantize(values[None], "tensor")
    assert numerics.dequantize(codes, scale)[0, 1].item() == approx(1, rel=0.0625)
    assert abs((values * 7 / 100).round() * 100 / 7 - values)[1] == 1, "in four bits it is lost"


# Section 5 -----------------------------------------------------------------------------------------------------------


@erratum("gemm-share", 1, 5, "dao2024flashattention2")
def the_best_product_is_below_80_percent_of_the_peak_on_paper():
    rows = results("gemm").rows("cublas", dtype="bf16")
    assert 0.7 < max(2 * row["case"]["M"] ** 3 / row["time_s"] for row in rows) / 989e12 < 0.8


@erratum("cublas", 5)
def cublaslt_has_epilogues():
    bias, a, b = torch.tensor([-1.0, 1.0]), torch.eye(2), torch.zeros(2, 2)
    assert torch._addmm_activation(bias, a, b).tolist() == [[0, 1], [0, 1]]


@erratum("libraries", 5, "thakkar2023cutlass", "ye2025flashinfer", "deepseek2025deepgemm", "zadouri2026flashattention4")
def libraries_have_moved_on():
    rows = [line for line in entry("libraries").splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 5
    assert all(word in entry("libraries") for word in ("FP8, FP4 and bf16", "not named", "Apex"))


# Section 6 -----------------------------------------------------------------------------------------------------------


def the_step(version):
    rows = results("decode_step").rows(version, B=1, L=4096)
    return next(row for row in rows if "tuned" not in row["case"])


@erratum("graph", 6)
def a_graph_keeps_kernels_and_pauses():
    rates = ceilings("h200-sxm")
    assert 0 < rates["launch graph"].rate < 0.2 * rates["launch eager"].rate
    graph = the_step("graph")
    assert graph["launches"] > 1000
    assert graph["wall_s"] > 1.5 * decode("llama-3-8b").moved() / 4.8e12


@erratum("fixed-shapes", 6)
def padding_a_small_batch_costs_little():
    rows = results("decode_linear").rows("merged_graph", model="llama-2-7b")
    per_layer = {row["case"]["B"]: row["time_s"] / row["case"]["layers"] for row in rows}
    assert 1 < per_layer[64] / per_layer[2] < 1.05


@erratum("triton-tiles", 5, 6, "tillet2019triton")
def the_programmer_lists_the_tiles():
    from rooflab.kernels import gemm

    for found in gemm.CONFIGS.values():
        assert len(found) > 1 and all({"BLOCK_M", "BLOCK_N", "BLOCK_K"} <= set(config) for config in found)
    assert "BLOCK_M: tl.constexpr" in Path(gemm.__file__).read_text(encoding="utf-8")


@erratum("triton-speed", 5, "shah2024flashattention3")
def triton_comes_near_and_not_always():
    ladder = results("gemm_ladder")
    time = {how: ladder.one(how, M=4096, N=4096)["time_s"] for how in ("autotuned", "tma", "cublas")}
    assert 0.8 < time["cublas"] / time["autotuned"] < 0.9 < time["cublas"] / time["tma"] < 1.02


@erratum("compile", 6)
def compiled_code_serves():
    assert the_step("eager")["wall_s"] / the_step("reduce_overhead")["wall_s"] > 2.4


@erratum("choice", 6)
def own_kernels_gain_on_top():
    assert 1.1 < the_step("reduce_overhead")["wall_s"] / the_step("triton")["wall_s"] < 1.5
    assert "time of engineers" in entry("choice")


# Section 7 -----------------------------------------------------------------------------------------------------------


@erratum("curve", 7, "dao2024flashattention2", "shah2024flashattention3")
def the_same_code_falls_from_a100_to_h100():
    assert 230e12 / device("a100-80gb-sxm").peak_flop_per_s("bf16") == approx(0.737, abs=1e-3)
    assert 335e12 / device("h100-sxm").peak_flop_per_s("bf16") == approx(0.339, abs=1e-3)


@erratum("fa2", 7, "dao2024flashattention2")
def the_conditions_of_flash_attention_2():
    assert all(text in entry("fa2") for text in ("73 percent forward", "63 backward", "80 GB", "50 to 73"))


@erratum("fa3", 7, "shah2024flashattention3")
def flash_attention_3_has_newer_figures():
    gpu = device("h100-sxm")
    assert 840e12 / gpu.peak_flop_per_s("bf16") == approx(0.849, abs=1e-3)
    assert 1.3e15 / gpu.peak_flop_per_s("fp8") == approx(0.657, abs=1e-3)
    assert "840 TFLOP/s, 85 %, and 1.3 PFLOP/s" in entry("fa3")


@erratum("history", 7, "dao2022flashattention", "dao2024flashattention2", "shah2024flashattention3")
def hiding_came_third():
    text = entry("history")
    assert "first removed traffic" in text and "second divided the work better" in text


@erratum("gemm-ceiling", 7, "shah2024flashattention3")
def attention_can_exceed_the_best_product():
    cublas = results("gemm_ladder").one("cublas", M=4096, N=4096)
    assert 2 * 4096**3 / cublas["time_s"] < 840e12
    assert device("h200-sxm").peak_flop_per_s("bf16") == approx(device("h100-sxm").peak_flop_per_s("bf16"), rel=1e-3)


@erratum("sources", 7, "dao2024flashattention2", "zadouri2026flashattention4")
def the_shares_of_the_first_are_in_the_paper_on_the_second():
    assert "in the paper on the second {cite}`dao2024flashattention2`" in entry("sources")
    # B200, per clock and SM: 8192 FLOP, and 16 exponentials as before.
    assert (1 / 16) / (4 * 128 / 8192) == 1


# Of this book --------------------------------------------------------------------------------------------------------


@erratum("own-launches", 1, 6)
def the_profilers_hooks_leave_the_process():
    """What is timed after a count of launches is launched as fast as before: the profiler is told to leave."""
    compiled, graph, eager = (the_step(how)["wall_s"] for how in ("compiled", "graph", "eager"))
    assert compiled == approx(graph, rel=0.03) and eager > 2 * max(compiled, graph)
    seen, synchronised = [], []

    class Profiler:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            seen.append(os.environ.get("TEARDOWN_CUPTI"))  # read when the profiler ends
            synchronised.clear()

        def export_chrome_trace(self, path):
            Path(path).write_text('{"traceEvents": []}', encoding="utf-8")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "require_gpu", lambda: None)
        patch.setattr(torch.cuda, "synchronize", lambda: synchronised.append(True))
        patch.setattr(torch.profiler, "profile", lambda **how: Profiler())
        for cuda in ("13.0", "12.6", "12.10", "12.4", "11.8", None):
            patch.setattr(torch.version, "cuda", cuda)
            assert timing.count_launches(lambda: None) == 0
            # It leaves at the end of a CUDA call that comes later: of one that waits for an idle GPU.
            assert synchronised
    # Where graphs could crash after that, it stays.
    assert seen == ["1", "1", "1", "0", "0", "0"]


@erratum("own-assembler", 5)
def torch_compile_finds_the_assembler_settled():
    """It names the one of PyTorch's wheel only where none is named, and our kernels name one when they are imported."""
    fp8 = results("gemm_fp8")
    for n, want in ((4096, 0.87), (8192, 0.88)):
        names = ("cublas", "fp8_block_specialised", "fp8_block_torch_ptxas")
        library, ours, other = (fp8.one(name, M=n, N=n)["time_s"] for name in names)
        assert library / ours == approx(want, abs=5e-3) and other > 1.04 * ours
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_PTXAS_PATH"}
    with tempfile.TemporaryDirectory() as folder:
        inductor = Path(folder) / "inductor"
        for each in (inductor, inductor.parent):  # where versions of torch.compile look for it, from their own file
            (each / "bin").mkdir(parents=True)
            (each / "bin" / "ptxas").touch(mode=0o755)
        code = f"""if True:
            import os, sys
            if "kernels" in sys.argv:
                import rooflab.kernels._triton
            from torch._inductor.runtime import compile_tasks
            compile_tasks.__file__ = {str(inductor / "runtime" / "compile_tasks.py")!r}
            compile_tasks._set_triton_ptxas_path()
            print(os.environ["TRITON_PTXAS_PATH"])"""
        for first, named in ((["kernels"], False), ([], True)):
            done = subprocess.run(
                [sys.executable, "-c", code, *first], env=environment, capture_output=True, text=True, check=True
            )
            assert Path(done.stdout.strip()).is_relative_to(folder) == named


# The page ------------------------------------------------------------------------------------------------------------


def labels():
    return re.findall(r"^\(errata-([a-z0-9-]+)\)=$", TEXT, re.MULTILINE)


def entry(label):
    """Return the text of an entry: from its label to the next label or heading of a group."""
    (start,) = (found.end() for found in re.finditer(rf"^\(errata-{label}\)=$", TEXT, re.MULTILINE))
    return re.split(r"^(?:\(errata-|## )", TEXT[start:], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("label", ERRATA)
def test_the_right_figure(label):
    ERRATA[label][1]()


@pytest.mark.parametrize("label", ERRATA)
def test_the_entry_says_both_and_leads_to_its_section(label):
    text, (where, _) = entry(label), ERRATA[label]
    assert text.startswith("\n### ")
    for word in ("This book, until" if label.startswith("own-") else "The notes", "Right"):
        assert word in text
    assert "```{code-cell}" in text, "a derivation or an experiment"
    cited = {key for group in re.findall(r"\{cite\}`([^`]+)`", text) for key in group.split(",")}
    for each in where:
        assert f"]({SECTIONS[each]})" in text if each in SECTIONS else each in cited


def test_every_entry_has_its_test_and_every_test_its_entry():
    assert labels() == list(ERRATA), "in the order of the page"


def test_no_line_of_the_page_is_in_another_language():
    assert not re.search(r"[\u3000-\u9fff\uff00-\uffef]", TEXT)


def test_the_policy():
    policy = TEXT.split("## Errors of ours", 1)[1]
    for word in ("To report one", "A fix contains", "a source", "a record", "the claim or the test", "an entry here"):
        assert word in policy
