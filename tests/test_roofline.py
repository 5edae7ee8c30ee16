"""The bound is the longest of the roofs' times and carries the name of that roof."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from rooflab import records
from rooflab.hardware import Device, HardwareError, device, devices
from rooflab.ledger import WORKLOADS, Demand
from rooflab.roofline import Roof, Roofline, RooflineError

# Round numbers, so that every expectation can be worked out in the head.
TOY = Roofline(
    "toy",
    (
        Roof("compute", "tensor", 100.0, "matrix"),
        Roof("compute", "vector", 10.0, "vector"),
        Roof("memory", "hbm", 4.0, "main memory"),
        Roof("memory", "l2", 20.0, "cache"),
        Roof("launch", "launch", 0.5, "launch"),
    ),
)


@pytest.mark.parametrize(
    ("work", "traffic", "launches", "time_s", "name"),
    [
        ({"tensor": 1000}, {"hbm": 4}, 1, 10.0, "matrix"),
        ({"tensor": 100}, {"hbm": 40}, 1, 10.0, "main memory"),
        ({"tensor": 100}, {"hbm": 4, "l2": 400}, 1, 20.0, "cache"),
        ({"tensor": 100, "vector": 50}, {"hbm": 4}, 1, 5.0, "vector"),
        ({"tensor": 1}, {"hbm": 1}, 30, 15.0, "launch"),
    ],
)
def test_the_longest_time_binds_and_is_named(work, traffic, launches, time_s, name):
    bound = TOY.bound(Demand("work", work, traffic, launches))
    assert bound.time_s == time_s
    assert bound.roof.label == name
    assert bound.attainable_flop_per_s == pytest.approx(bound.demand.flop / time_s)


def test_ridge_is_where_the_named_roof_flips():
    ridge = TOY.ridge_flop_per_byte()
    assert ridge == 25.0
    for factor, name in ((0.999, "main memory"), (1.001, "matrix")):
        moved = 1e6
        assert TOY.bound(Demand("x", {"tensor": moved * ridge * factor}, {"hbm": moved})).roof.label == name
    assert TOY.ridge_flop_per_byte("vector", "l2") == 0.5


def test_attainable_is_an_array_function():
    got = TOY.attainable_flop_per_s(np.array([1.0, 25.0, 1000.0]))
    assert got == pytest.approx([4.0, 100.0, 100.0])


@pytest.mark.parametrize(("id", "gpu"), devices().items())
def test_attainable_agrees_with_the_time_bound_on_every_device(id, gpu):
    """Two routes to one number: min(P, I beta), and FLOP over the longest time."""
    for dtype, intensity in itertools.product(gpu.dtypes("tensor"), (0.1, 3.0, 200.0, 5000.0)):
        line = Roofline.of(gpu, dtype)
        bound = line.bound(Demand("x", {"tensor": intensity * 1e9}, {"hbm": 1e9}))
        assert bound.attainable_flop_per_s == pytest.approx(line.attainable_flop_per_s(intensity), rel=1e-12)
        assert line.ridge_flop_per_byte() == pytest.approx(gpu.ridge_flop_per_byte(dtype), rel=1e-12)


def test_measured_ceilings_lie_below_the_roofs_on_paper():
    h200 = device("h200-sxm")
    for dtype in ("bf16", "fp8"):
        paper, measured = Roofline.of(h200, dtype), Roofline.of(h200, dtype, measured=True)
        for roof in paper.roofs:
            lower = next(each for each in measured.roofs if (each.kind, each.key) == (roof.kind, roof.key))
            assert lower.rate < roof.rate if lower.basis == "measured" else lower == roof
        assert {roof.basis for roof in measured.roofs} == {"paper", "measured"}


def test_gemv_on_an_h100_by_hand():
    # 4096 x 4096 weights and two vectors in bf16 over 3.35 TB/s.
    bound = Roofline.of(device("h100-sxm"), "bf16").bound(WORKLOADS["gemv"].demand(M=4096, K=4096, b=2))
    assert bound.time_s == pytest.approx(2 * (4096 * 4096 + 2 * 4096) / 3.35e12)
    assert bound.roof.label == "HBM3 bandwidth"


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_impossible_rates_raise(rate):
    with pytest.raises(RooflineError, match="must be positive and finite"):
        Roof("memory", "hbm", rate, "memory")


def test_measured_ceilings_are_the_readers_own_where_the_book_has_none(tmp_path, monkeypatch):
    monkeypatch.delenv("ROOFLAB_REPLAY", raising=False)
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path / "none"))
    with pytest.raises(RooflineError) as caught:
        Roofline.of(device("l4"), "bf16", measured=True)
    assert str(caught.value) == (
        "no measured ceilings for NVIDIA L4 in bf16; the book has them for h200-sxm; "
        "on that GPU run: rooflab measure gemm bandwidth"
    )
    # What the remedy leaves behind; an int8 product is in no experiment.
    monkeypatch.setenv("ROOFLAB_RECORDS", str(tmp_path))
    for name in ("gemm", "bandwidth"):
        dataclasses.replace(records.load("h200-sxm", name), device="l4").save(tmp_path)
    own, book = (Roofline.of(device(id), "bf16", measured=True).roofs for id in ("l4", "h200-sxm"))
    assert [roof for roof in own if roof.basis == "measured"] == [roof for roof in book if roof.basis == "measured"]
    with pytest.raises(RooflineError, match="in int8; the book has them for no device$"):
        Roofline.of(device("a100-80gb-sxm"), "int8", measured=True)
    monkeypatch.setenv("ROOFLAB_REPLAY", "1")
    with pytest.raises(RooflineError, match="no measured ceilings for NVIDIA L4"):
        Roofline.of(device("l4"), "bf16", measured=True)


def test_what_is_missing_is_named_with_the_choices():
    with pytest.raises(RooflineError, match="unknown kind of roof 'network'; choose from compute, memory, launch"):
        Roof("network", "nvlink", 1.0, "x")
    with pytest.raises(RooflineError, match="toy has no compute roof 'exp'; it has tensor, vector"):
        TOY.bound(Demand("x", {"exp": 1}, {"hbm": 1}))
    with pytest.raises(HardwareError, match="h100-sxm"):
        Roofline.of(device("h100-sxm"), "fp4")
    with pytest.raises(RooflineError, match="no measured floor 'launch eager' for NVIDIA L4; it has none"):
        Roofline.of(device("l4"), "bf16", launch="eager")
    plain = Device.simple("x1", "X1", peaks={"bf16": "100 TFLOP/s"}, hbm="4 TB/s", source="a", date="2026")
    with pytest.raises(RooflineError, match="no compute roof 'vector'"):
        Roofline.of(plain, "bf16").bound(WORKLOADS["softmax"].demand(R=8, C=8, b=2))
