"""Timing, launch counts and a small campaign on a real GPU: pytest -m gpu tests/gpu."""

import pytest
import torch

from rooflab import records, timing
from rooflab.experiments import EXPERIMENTS, Campaign, Gpu
from rooflab.kernels import elementwise, layernorm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


def test_events_agree_with_the_wall_clock_for_long_work():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    timings, observed = timing.measure({"mm": lambda: a @ a}, cache="warm", budget_s=0.1)
    assert timings["mm"].time_s == pytest.approx(timings["mm"].wall_s, rel=0.3)
    assert timings["mm"].p20_s <= timings["mm"].time_s <= timings["mm"].p80_s


def test_small_kernels_are_not_charged_for_their_launch():
    x = torch.zeros(1, device="cuda")
    timings, _ = timing.measure({"add": lambda: x.add_(1)}, budget_s=0.02)
    assert timings["add"].time_s < timings["add"].wall_s


def test_a_call_is_not_charged_for_a_host_that_fell_behind_in_another():
    x, y = torch.zeros(1, device="cuda"), torch.zeros(2**20, device="cuda")
    few, many = (lambda: [y.sin() for _ in range(400)]), (lambda: [x.add_(1) for _ in range(1200)])
    alone, _ = timing.measure({"few": few}, cache="warm", launches=400)
    beside, _ = timing.measure({"many": many, "few": few}, cache="warm", launches=1600)
    assert beside["few"].time_s == pytest.approx(alone["few"].time_s, rel=0.1)


def test_a_cold_cache_is_slower_than_a_warm_one():
    x = torch.randn(2**21, device="cuda")
    cold, warm = (
        timing.measure({"sum": lambda: x.sum()}, cache=cache, budget_s=0.02)[0]["sum"].time_s
        for cache in ("cold", "warm")
    )
    assert cold > warm


def test_launches_are_counted_as_the_ledger_counts_them():
    x = torch.randn(1000, device="cuda")
    for k in (1, 3, 8):
        assert timing.count_launches(lambda k=k: elementwise.eager(x, k)) == k
        assert timing.count_launches(lambda k=k: elementwise.unfused(x, k)) == k
        assert timing.count_launches(lambda k=k: elementwise.fused(x, k)) == 1


def test_a_graph_replays_the_same_result():
    inputs = [torch.randn(4, 256, device="cuda"), torch.randn(4, 256, device="cuda")]
    inputs += [torch.randn(256, device="cuda"), torch.randn(256, device="cuda")]
    out = {}
    replay = timing.graphed(lambda: out.__setitem__("y", layernorm.eager(*inputs)))
    inputs[0].mul_(2)
    replay()
    assert torch.equal(out["y"], layernorm.eager(*inputs))


def test_cancel_stops_between_chunks():
    with pytest.raises(timing.Cancelled):
        timing.measure({"noop": lambda: None}, cancelled=lambda: True)


def test_a_quick_campaign_resumes(tmp_path):
    names = ("launch", "latency")
    first = Campaign([EXPERIMENTS[name] for name in names], root=tmp_path, quick=True)
    assert len(list(first.steps())) == len(first) and first.failed == 0
    before = records.load(first.device, "latency", tmp_path)
    again = Campaign([EXPERIMENTS["latency"]], root=tmp_path, quick=True)
    list(again.steps())
    assert records.load(first.device, "latency", tmp_path).rows == before.rows
    assert Gpu.here().memory_bytes > 1e9
