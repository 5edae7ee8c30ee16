"""What the FlashAttention curve must reach on the book's H200, from its record: ratios within one run only."""

import pytest

from rooflab import records
from rooflab.experiments import EXPERIMENTS
from rooflab.hardware import device
from rooflab.kernels import flash
from rooflab.roofline import ceilings

RECORD = records.load("h200-sxm", "flash")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def speed(version, L=16384, causal=False, sustained=None, back=None):
    (row,) = RECORD.select(version, L=L, causal=causal, sustained=sustained, **{"pass": back})
    return EXPERIMENTS["flash"].demand(row["case"], version).flop / row["time_s"]


def test_the_curve_is_whole():
    for L in LENGTHS:
        for causal in (False, True):
            for version in ("gemm", "naive", "fa1", "fa2", "fa3", "fa3_fp8", "sdpa_flash", "sdpa_cudnn"):
                peak = device("h200-sxm").peak_flop_per_s("fp8" if version == "fa3_fp8" else "bf16")
                assert 0 < speed(version, L, causal) < peak
    assert not [skip for skip in RECORD.skipped if "failed" in skip["reason"]]


@CAUSAL
def test_plain_triton(causal):
    assert speed("fa2", causal=causal) >= 0.88 * speed("sdpa_cudnn", causal=causal)
    assert speed("fa2", causal=causal) >= 1.45 * speed("sdpa_flash", causal=causal)


def test_fa3_sustained():
    hot = {"sustained": True}
    assert speed("fa3", **hot) >= 1.06 * speed("sdpa_cudnn", **hot)
    assert speed("fa3", causal=True, **hot) >= 1.13 * speed("sdpa_cudnn", causal=True, **hot)
    assert speed("fa3", **hot) >= 0.97 * speed("gemm", **hot)
    assert speed("fa3_fp8", **hot) >= 1.35 * speed("fa3", **hot)


@CAUSAL
def test_fa3_beside_flash_attn_4(causal):
    assert speed("fa3", causal=causal, sustained=True) >= speed("flash_attn_4", causal=causal, sustained=True)


@CAUSAL
@pytest.mark.parametrize("L", LENGTHS)
def test_fa3_is_never_below_cudnn(L, causal):
    assert speed("fa3", L, causal) >= speed("sdpa_cudnn", L, causal)


@CAUSAL
@pytest.mark.parametrize("L", [2048, 16384])
def test_backward(L, causal):
    assert speed("fa2", L, causal, back="backward") >= 0.75 * speed("sdpa_cudnn", L, causal, back="backward")


@CAUSAL
@pytest.mark.parametrize("L", LENGTHS)
def test_the_slow_ones_are_slow_for_the_reason_that_is_given(L, causal):
    """Naive: its bytes and one product. FA1: the chain of its tiles, on as many SMs as there are heads."""
    (naive,), (fa1,) = (RECORD.select(name, L=L, causal=causal) for name in ("naive", "fa1"))
    copy, product = (ceilings("h200-sxm")[name].rate for name in ("copy", "gemm bf16"))
    assert naive["time_s"] == pytest.approx(flash.naive_seconds(16384 // L, 16, L, 128, copy, product), rel=0.2)
    assert fa1["time_s"] == pytest.approx(flash.fa1_seconds(fa1["case"]["B"], 16, L, causal), rel=0.2)
