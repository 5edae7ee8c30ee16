"""The experiment of section 7 without a GPU: its cases, its demands, its proofs, and how a sustained speed is timed."""

import pytest

torch = pytest.importorskip("torch")

from rooflab import kernels, timing  # noqa: E402
from rooflab.experiments import EXPERIMENTS, Campaign, Gpu, suite  # noqa: E402
from rooflab.experiments.campaign import refuse_above_roof  # noqa: E402
from rooflab.hardware import device  # noqa: E402
from rooflab.kernels import attention, flash  # noqa: E402

FLASH = EXPERIMENTS["flash"]
H200 = Gpu(memory_bytes=141 * 10**9, l2_bytes=50 * 2**20, capability=90)
CASES = list(FLASH.cases(H200, False))
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
pytestmark = pytest.mark.filterwarnings(
    "ignore:(invalid value|overflow|divide by zero|All-NaN slice) encountered:RuntimeWarning"
)


def test_cases_keep_the_tokens_and_name_each_measurement_once():
    assert all(case["B"] * case["L"] == 16384 and case["h"] * case["d_h"] == 2048 for case in CASES)
    plain = [case for case in CASES if not {"slow", "sustained", "pass"} & case.keys()]
    assert [(case["L"], case["causal"]) for case in plain] == [(L, causal) for L in LENGTHS for causal in (False, True)]
    assert {case["L"] for case in CASES if "sustained" in case} == {16384}
    assert {case["L"] for case in CASES if "pass" in case} == {2048, 16384}
    keys = [tuple(sorted(case.items())) for case in CASES]
    assert len(set(keys)) == len(keys)


def test_a_small_card_measures_what_fits():
    small = list(FLASH.cases(Gpu(8 * 10**9, 2**22, 86), False))
    assert {case["L"] for case in small} == {512, 1024, 2048, 4096}
    smaller = list(FLASH.cases(Gpu(6 * 10**9, 2**22, 86), False))
    assert [case["causal"] for case in small if case["L"] == 4096 and "slow" in case] == [False, True]
    assert [case for case in smaller if case["L"] == 4096] and not [
        case for case in smaller if case["L"] == 4096 and "slow" in case
    ], "S and P take 4.3 GB, and the next P is made before the last one is freed"


def case_of(L=16384, causal=False, **more):
    return {"dtype": "bf16", "h": 16, "d_h": 128, "B": 16384 // L, "L": L, "causal": causal} | more


def test_demands_are_the_papers_convention():
    """4 B h L^2 d forward, half of it when causal, 2.5 times backward; one exponential for each 4 d FLOP."""
    full = FLASH.demand(case_of(), "fa3")
    assert full.flop == 4 * 16 * 16384**2 * 128
    assert FLASH.demand(case_of(causal=True), "sdpa_cudnn").flop == full.flop / 2
    assert FLASH.demand(case_of(**{"pass": "backward"}), "fa2").flop == 2.5 * full.flop
    for version in ("naive", "fa1", "fa2", "fa3", "fa3_fp8", "flex"):
        for causal in (False, True):
            need = FLASH.demand(case_of(2048, causal), version)
            assert need.work["exp"] * 4 * 128 == need.flop
    assert FLASH.demand(case_of(), "gemm").flop == 2 * 8192**3


def test_demands_count_bytes_by_level():
    """Q, K, V, O once from main memory; from L2 what a tile's rows make it read again: 192 are 3 x 64."""
    tensor = 16384 * 2048
    assert FLASH.demand(case_of(), "fa2").traffic["hbm"] == 4 * 2 * tensor
    assert FLASH.demand(case_of(), "fa3_fp8").traffic["hbm"] == (3 + 2) * tensor
    assert FLASH.demand(case_of(), "naive").traffic["hbm"] == 4 * 2 * (tensor + 16 * 16384**2)
    l2 = {name: FLASH.demand(case_of(), name).traffic["l2"] for name in ("fa1", "fa2", "fa3", "fa3_fp8")}
    again = {name: l2[name] - FLASH.demand(case_of(), "fa2").traffic["hbm"] / 2 for name in ("fa2", "fa3")}
    assert 2.8 < again["fa2"] / again["fa3"] <= 3, "a few of fa3's tiles have 128 rows"
    assert l2["fa3"] / l2["fa3_fp8"] == pytest.approx(2, rel=0.02)
    # For each score FA1 moves a 128th of a row of Q (256 B) and, both ways, of O (1024 B), l and m (16 B); FA2 a 64th
    # of a row of K and of V (512 B).
    assert l2["fa1"] / l2["fa2"] == pytest.approx((256 + 1024 + 16) / 128 / (512 / 64), rel=0.02)


def test_an_fp8_version_has_the_roof_of_fp8():
    case, need = case_of(), FLASH.demand(case_of(), "fa3_fp8")
    time_s = need.flop / 1200e12  # above the bf16 peak, below that of FP8
    assert FLASH.dtype(case, "fa3_fp8") == "fp8" and FLASH.dtype(case, "fa3") == "bf16"
    refuse_above_roof("h200-sxm", H200, need, case | {"dtype": FLASH.dtype(case, "fa3_fp8")}, time_s)
    with pytest.raises(kernels.KernelError.__base__, match="bf16 matrix peak"):
        refuse_above_roof("h200-sxm", H200, need, case | {"dtype": FLASH.dtype(case, "fa3")}, time_s)
    assert need.flop / device("h200-sxm").peak_flop_per_s("fp8") < time_s


def test_the_campaign_asks_the_experiment_for_the_dtype(fake, tmp_path):
    from rooflab.ledger import Demand

    need = Demand("x", {"tensor": 2.4e9}, {"hbm": 1})  # in 2 us: 1200 TFLOP/s
    cases = {"cases": lambda gpu, quick: [{"n": 1, "dtype": "bf16"}], "demand": lambda case, version: need}
    dtype = {"dtype": lambda case, version: "fp8" if version == "fused" else case["dtype"]}
    campaign = Campaign([fake.experiment(**cases, **dtype)], root=tmp_path, say=lambda text: None)
    list(campaign.steps())
    assert [row["version"] for row in campaign.rows] == ["fused"] and campaign.failed == 1


# Proofs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_the_cpu(monkeypatch):
    def normal(*shape, dtype="bf16", seed=0):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).to(suite.torch_dtype(dtype))

    monkeypatch.setattr(suite, "_normal", normal)
    monkeypatch.setattr(suite, "_runs_here", lambda name: name not in suite._WGMMA | {"sdpa_cudnn", "flex"})
    monkeypatch.setattr(suite, "YARDSTICK", 128)


SMALL = {"dtype": "bf16", "B": 1, "h": 2, "L": 200, "d_h": 64}
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def proven(check):
    return check.max_error <= check.tolerance  # false for NaN


@CAUSAL
@pytest.mark.parametrize("more", [{}, {"slow": True}, {"pass": "backward"}], ids=["fast", "slow", "backward"])
def test_every_version_is_proven_against_float64(on_the_cpu, causal, more):
    calls = FLASH.prepare(SMALL | {"causal": causal} | more, FLASH.versions)
    expected = {"slow": {"naive", "fa1"}, "pass": {"fa2", "sdpa_flash"}}
    assert calls.keys() >= expected.get(next(iter(more), ""), {"gemm", "fa2", "sdpa_flash"})
    for name, call in calls.items():
        check = call.prove()
        assert proven(check) and check.max_error > 0, name
        # An error a few times as large as that of right results is found.
        assert check.max_error > check.tolerance / 4, name
    assert all(
        calls[name].kernel == module for name, module in (("fa2", "flash"), ("naive", "attention")) if name in calls
    )


def unwritten(q, k, v, causal, out=None, lse=None):
    return out


def without_two_keys(q, k, v, causal, out=None, lse=None):
    v = v.clone()
    v[:, :, 64:66] = 0
    return flash.fa2(q, k, v, causal, out, lse)


def other_lse(q, k, v, causal, out=None, lse=None):
    out = flash.fa2(q, k, v, causal, out, lse)
    lse += 0.01
    return out


def last_row(q, k, v, causal, out=None, lse=None):
    out = flash.fa2(q, k, v, causal, out, lse)
    out[:, -1, -1] = out[:, -1, -2]
    return out


def no_lse(q, k, v, causal, out=None, lse=None):
    return flash.fa2(q, k, v, causal, out)  # the buffer still holds what an earlier proof left


def last_rows(q, k, v, causal, out=None, lse=None):
    out = flash.fa2(q, k, v, causal, out, lse)
    out[:, :, 192:] *= 1.008  # 8 of 200 rows: within all of them it would hide
    return out


@CAUSAL
@pytest.mark.parametrize("wrong", [unwritten, without_two_keys, other_lse, no_lse, last_row, last_rows])
def test_a_wrong_version_is_not_proven(on_the_cpu, monkeypatch, wrong, causal):
    calls = FLASH.prepare(SMALL | {"causal": causal}, ("fa2",))
    right = flash.fa2
    assert proven(calls["fa2"].prove())
    monkeypatch.setattr(flash, "fa2", lambda *given: (monkeypatch.setattr(flash, "fa2", right), wrong(*given))[1])
    assert not proven(calls["fa2"].prove())


def test_a_wrong_gradient_is_not_proven(on_the_cpu, monkeypatch):
    right = flash.fa2_backward

    def swapped(*given):
        dq, dk, dv = right(*given)
        return dq, dv, dk

    calls = FLASH.prepare(SMALL | {"causal": True, "pass": "backward"}, ("fa2",))
    monkeypatch.setattr(flash, "fa2_backward", swapped)
    assert not proven(calls["fa2"].prove())


def test_a_causal_kernel_is_not_taken_for_a_full_one(on_the_cpu, monkeypatch):
    calls = FLASH.prepare(SMALL | {"causal": False, "slow": True}, ("naive",))
    right = attention.naive
    monkeypatch.setattr(attention, "naive", lambda q, k, v, causal, out: right(q, k, v, True, out))
    assert not proven(calls["naive"].prove())


def test_peers_that_are_not_installed_are_left_out(on_the_cpu, monkeypatch):
    import sys

    for name in ("flash_attn", "flash_attn.cute", "flashinfer"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    calls = FLASH.prepare(SMALL | {"causal": False}, ("flash_attn_4", "flashinfer", "sdpa_flash"))
    assert set(calls) == {"sdpa_flash"}


# Sustained -----------------------------------------------------------------------------------------------------------


def test_the_campaign_keeps_what_was_seen_of_each_version(fake, tmp_path, monkeypatch):
    def sustained(runs, *, cancelled, observe):
        return fake.measure(runs, cancelled=cancelled)[0], {name: {"power_w": i} for i, name in enumerate(runs)}

    monkeypatch.setattr(timing, "sustained", sustained)
    cases = lambda gpu, quick: [{"n": 1, "sustained": True}]  # noqa: E731
    campaign = Campaign([fake.experiment(cases=cases)], root=tmp_path)
    list(campaign.steps())
    assert {row["version"]: row["observed"] for row in campaign.rows} == {
        "eager": {"power_w": 0},
        "fused": {"power_w": 1},
    }
