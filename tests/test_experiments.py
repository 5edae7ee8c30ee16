"""The campaign, on a fake GPU: resume, skips with reasons, refusals, interrupts. Real timing is in tests/gpu."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from rooflab import kernels, provenance, records, timing  # noqa: E402
from rooflab.experiments import EXPERIMENTS, Campaign, Gpu, counters, device_id, named  # noqa: E402
from rooflab.experiments import campaign as module  # noqa: E402
from rooflab.experiments.base import Call  # noqa: E402
from rooflab.experiments.campaign import refuse_above_roof  # noqa: E402
from rooflab.ledger import Demand  # noqa: E402
from rooflab.records import RecordError, StaleRecord  # noqa: E402

H200 = Gpu(memory_bytes=141 * 10**9, l2_bytes=50 * 2**20, capability=90)


def run(experiment, root, **options):
    said = []
    campaign = Campaign([experiment], root=root, say=said.append, **options)
    for _ in campaign.steps():
        pass
    return campaign, said, records.load("h200-sxm", experiment.name, root)


def test_all_rows_are_kept_and_a_second_run_measures_nothing(fake, tmp_path):
    _, _, record = run(fake.experiment(), tmp_path)
    assert len(record.rows) == 6 and len(fake.prepared) == 3
    run(fake.experiment(), tmp_path)
    assert len(fake.prepared) == 3


def test_a_new_version_is_measured_alone(fake, tmp_path):
    run(fake.experiment(versions=("eager",)), tmp_path)
    run(fake.experiment(), tmp_path)
    assert [versions for _, versions in fake.prepared] == [("eager",)] * 3 + [("fused",)] * 3


def test_again_measures_what_is_there_and_a_row_stays_until_a_new_one_takes_its_place(fake, tmp_path):
    run(fake.experiment(), tmp_path)
    fake.time_s, fake.fail[2] = 5e-6, RuntimeError("no such instruction")
    campaign, _, record = run(fake.experiment(), tmp_path, again=True)
    assert [n for n, _ in fake.prepared] == [1, 2, 3] * 2
    assert len(record.rows) == 6 and len(campaign.rows) == 4
    assert {row["case"]["n"]: row["time_s"] for row in record.rows} == {1: 5e-6, 2: 2e-6, 3: 5e-6}


def test_a_campaign_of_some_cases_leaves_why_others_were_skipped(fake, tmp_path):
    fake.fail[2] = torch.cuda.OutOfMemoryError("CUDA out of memory")
    run(fake.experiment(), tmp_path)
    _, _, record = run(fake.experiment(), tmp_path, quick=True)
    assert [skip["case"] for skip in record.skipped] == [{"n": 2}]


def test_an_interrupt_loses_nothing_and_the_next_run_goes_on(fake, tmp_path):
    fake.fail[2] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(fake.experiment(), tmp_path)
    assert len(records.load("h200-sxm", "chain", tmp_path).rows) == 2
    fake.fail.clear()
    _, _, record = run(fake.experiment(), tmp_path)
    assert len(record.rows) == 6
    assert [n for n, _ in fake.prepared] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED: out of memory"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_a_skip_and_the_rest_goes_on(fake, tmp_path, error):
    fake.fail[2] = error
    campaign, said, record = run(fake.experiment(), tmp_path)
    assert {row["case"]["n"] for row in record.rows} == {1, 3}
    assert record.skipped == [{"case": {"n": 2}, "versions": ["eager", "fused"], "reason": "out of memory"}]
    assert "out of memory" in said[0] and campaign.failed == 0


def test_a_failure_is_named_counted_and_the_rest_goes_on(fake, tmp_path):
    fake.fail[1] = RuntimeError("no such instruction")
    campaign, said, record = run(fake.experiment(), tmp_path)
    assert campaign.failed == 1 and len(record.rows) == 4
    assert "failed: RuntimeError: no such instruction" in said[0]


def test_a_version_that_fails_its_check_is_not_timed(fake, tmp_path):
    def prepare(case, versions):
        calls = fake.prepare(case, versions)
        calls["fused"] = Call(lambda: None, lambda: kernels.Check(5.0, 1.0))
        return calls

    campaign, said, record = run(fake.experiment(prepare=prepare), tmp_path)
    assert {row["version"] for row in record.rows} == {"eager"}
    assert campaign.failed == 3 and "failed its correctness check" in said[0]


def test_what_the_gpu_cannot_do_is_skipped_with_its_reason(fake, tmp_path):
    _, said, record = run(
        fake.experiment(needs=lambda gpu, case: f"needs sm_100, this is sm_{gpu.capability}"), tmp_path
    )
    assert not record.rows and "needs sm_100, this is sm_90" in said[0]
    needs = EXPERIMENTS["gemm"].needs
    assert "no FP8 matrix units below sm_89" in needs(Gpu(1, 1, 80), {"dtype": "fp8"})
    assert not needs(H200, {"dtype": "fp8"}) and not needs(Gpu(1, 1, 80), {"dtype": "bf16"})


def of_a_kernel(fake):
    """Return the fake's `prepare`, with calls that depend on a kernel module."""

    def prepare(case, versions):
        calls = fake.prepare(case, versions)
        return {name: Call(call.run, call.prove, "elementwise") for name, call in calls.items()}

    return prepare


def test_rows_of_another_kernel_are_stale_and_measured_again(fake, tmp_path, monkeypatch):
    prepare = of_a_kernel(fake)
    _, _, record = run(fake.experiment(prepare=prepare), tmp_path)
    module.require_fresh(record)
    monkeypatch.setattr(kernels, "fingerprint", lambda name: "another")
    with pytest.raises(StaleRecord, match="measured with another elementwise; run: rooflab measure chain --out"):
        module.require_fresh(record)
    _, said, record = run(fake.experiment(prepare=prepare), tmp_path)
    assert "6 rows are of an older kernel" in said[0] and len(record.rows) == 6
    module.require_fresh(record)


def test_a_stale_row_stays_until_a_new_one_takes_its_place(fake, tmp_path, monkeypatch):
    experiment = fake.experiment(prepare=of_a_kernel(fake), not_quick=("fused",))
    run(experiment, tmp_path)
    monkeypatch.setattr(kernels, "fingerprint", lambda name: "another")
    fake.time_s = 5e-6
    campaign, said, record = run(experiment, tmp_path, quick=True)
    assert said == ["chain: 1 rows are of an older kernel and are measured again"]
    assert len(record.rows) == 6 and len(campaign.rows) == 1
    assert [row["case"] for row in record.rows if not module.is_stale(row)] == [{"n": 1}]
    fake.fail[2] = RuntimeError("no such instruction")
    campaign, said, record = run(experiment, tmp_path)
    assert "5 rows are of an older kernel" in said[0] and len(campaign.rows) == 3
    assert len(record.rows) == 6 and {row["case"]["n"] for row in record.rows if module.is_stale(row)} == {2}


def test_a_failed_trace_costs_no_timing(fake, tmp_path, monkeypatch):
    traces = iter([RuntimeError("no profiler here")])

    def timeline(call):
        for error in traces:
            raise error
        return [("void f<a>(b)", 0.0, 1e-6)]

    monkeypatch.setattr(timing, "timeline", timeline)
    campaign, said, record = run(fake.experiment(traced=lambda case: case["n"] < 3), tmp_path)
    assert len(record.rows) == 6 and campaign.failed == 1
    assert "skipped eager: failed: RuntimeError: no profiler here" in said[0]
    assert [row.get("timeline") for row in record.rows] == [None, *[[["f", 0.0, 1e-6]]] * 3, None, None]


def test_a_time_above_its_roof_is_refused_with_the_likely_cause(fake, tmp_path):
    # 1 GB in 2 us would be 500 TB/s.
    experiment = fake.experiment(demand=lambda case, version: Demand("copy", {"vector": 0}, {"hbm": 1e9}))
    campaign, said, record = run(experiment, tmp_path)
    assert not record.rows and campaign.failed == 6
    assert "lies above the roof HBM3e bandwidth" in said[0] and "came from a cache" in said[0]


def test_roofs_are_asked_only_where_they_hold():
    case = {"dtype": "bf16"}
    inside = Demand("copy", {"vector": 0}, {"hbm": 100 * 2**20})
    refuse_above_roof("h200-sxm", H200, inside, case, 1e-6)  # fits in L2: no main-memory roof
    refuse_above_roof("my-own-card", H200, Demand("x", {"tensor": 1e18}, {"hbm": 1}), case, 1e-6)  # nothing on paper
    refuse_above_roof("h200-sxm", H200, Demand("x", {"exp": 1e18}, {"hbm": 1}), case, 1e-6)  # no roof for the unit
    with pytest.raises(RecordError, match="bf16 matrix peak.*FLOPs were counted twice"):
        refuse_above_roof("h200-sxm", H200, Demand("x", {"tensor": 2e12}, {"hbm": 1}), case, 1e-3)
    refuse_above_roof("h200-sxm", H200, Demand("x", {"tensor": 2e12}, {"hbm": 1}), {"dtype": "fp8"}, 1.1e-3)


def test_the_roof_is_sharp():
    """One per cent above is refused, one per cent below is kept: 48 GB at 4.8 TB/s take 10 ms."""
    moved = Demand("copy", {"vector": 0}, {"hbm": 48e9})
    refuse_above_roof("h200-sxm", H200, moved, {}, 0.0101)
    with pytest.raises(RecordError, match="allows no less than 0.01 s"):
        refuse_above_roof("h200-sxm", H200, moved, {}, 0.0099)
    # Eight kernels that each move less than four times L2 may meet what the one before left in the cache.
    small = Demand("chain", {"vector": 0}, {"hbm": 8 * 67e6}, 8)
    refuse_above_roof("h200-sxm", H200, small, {}, 100e-6)


def test_sizes_scale_to_the_memory_of_the_card():
    small = Gpu(memory_bytes=8 * 10**9, l2_bytes=2**22, capability=86)
    for experiment in EXPERIMENTS.values():
        if experiment.name != "softmax":
            few, many = len(list(experiment.cases(small, False))), len(list(experiment.cases(H200, False)))
            assert 0 < few <= many
        quick = list(experiment.cases(H200, True))
        # These are not part of the quick campaign: what they compile alone takes half a minute.
        slow = ("gemm_ladder", "gemm_fp8", "marks", "decode_step", "first_call", "flash")
        assert bool(quick) == (experiment.name not in slow), (
            f"{experiment.name}: `slow` in tests/test_experiments.py names those without quick cases, and no others"
        )
        assert len(quick) <= len(list(experiment.cases(H200, False)))
    elements = [case["rows"] * case["columns"] for case in EXPERIMENTS["softmax"].cases(small, False)]
    assert max(elements) < 2**28 and max(elements) * 64 <= small.memory_bytes
    assert max(case["rows"] for case in EXPERIMENTS["norm"].cases(small, False)) < 65536
    assert len(list(EXPERIMENTS["bandwidth"].cases(small, False))) < len(
        list(EXPERIMENTS["bandwidth"].cases(H200, False))
    )


def test_demand_needs_no_gpu_and_is_the_ledgers():
    for experiment in EXPERIMENTS.values():
        for case in experiment.cases(H200, True):
            for version in experiment.versions:
                assert experiment.demand(case, version).traffic["hbm"] > 0
    chain = EXPERIMENTS["chain"].demand
    apart, together = (chain({"dtype": "bf16", "n": 2**20, "k": 8}, version) for version in ("eager", "fused"))
    assert apart.traffic["hbm"] == 8 * together.traffic["hbm"] and apart.launches == 8


def test_names():
    assert device_id("NVIDIA H200") == "h200-sxm"
    assert device_id("NVIDIA H100 PCIe") == "h100-pcie"
    assert device_id("Some GPU (2030)") == "some-gpu-2030"
    with pytest.raises(RecordError, match="unknown experiment 'speed'; choose from bandwidth, gemm"):
        named(["speed"])
    assert [each.name for each in named([])] == list(EXPERIMENTS)


HEAD = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
MARK = '"0","add_one_kernel","gpu__time_duration.sum","us","1"'


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ('"1","f<a>(b)","gpu__time_duration.sum","us","1,250.5"', [{"kernel": "f", "time_s": 1.2505e-3}]),
        ('"1","f","dram__bytes_read.sum","Mbyte","n/a"', {"reason": "ncu printed what is not a counter: "}),
        ('"1","f","dram__bytes_read.sum","Zbyte","1"', {"reason": "ncu printed what is not a counter: "}),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", {"reason": "ERROR== ERR_NVGPUCTRPERM - no permission"}),
    ],
)
def test_what_the_profiler_prints_becomes_counters_or_a_reason(tmp_path, monkeypatch, printed, found):
    tool = tmp_path / "ncu"
    table = printed if printed.startswith("==") else "\n".join([HEAD, MARK, printed])
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{table}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    counted = counters.count("softmax", {"columns": 1}, ["eager"])["eager"]
    if "reason" in found:
        assert found["reason"] in counted["reason"]
    else:
        assert counted == found
    monkeypatch.setenv("PATH", "/nowhere")
    assert counters.count("softmax", {}, ["eager"]) == {"eager": {"reason": "no ncu on this machine"}}


def test_versions_that_a_case_does_not_have_are_named(fake, tmp_path):
    def prepare(case, versions):
        return {name: call for name, call in fake.prepare(case, versions).items() if name != "fused"}

    _, said, record = run(fake.experiment(prepare=prepare), tmp_path)
    assert {row["version"] for row in record.rows} == {"eager"}
    reason = "not for this case, not on this GPU, or not installed"
    assert record.skipped[0] == {"case": {"n": 1}, "versions": ["fused"], "reason": reason} and reason in said[0]


class FakeNvml:
    """Three GPUs, which NVML numbers and names."""

    class NVMLError(Exception):
        pass

    def __init__(self, uuids):
        self.uuids = uuids

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.uuids:
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetName(self, handle):
        return handle


@pytest.mark.parametrize(
    ("visible", "here", "found"),
    [
        (None, None, "GPU-a"),
        ("2", None, "GPU-c"),
        ("1,0", None, "GPU-b"),
        ("GPU-c,GPU-a", None, "GPU-c"),
        (None, "b", "GPU-b"),  # CUDA puts the fastest first, NVML goes by the bus
        ("1", "MIG-of-b", "GPU-b"),
    ],
)
def test_what_is_observed_is_the_gpu_that_cuda_sees_first(visible, here, found, monkeypatch):
    monkeypatch.setattr(provenance, "_nvml", lambda: FakeNvml(["GPU-a", "GPU-b", "GPU-c"]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: here is not None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=here))
    assert provenance.gpu_here() == f"GPU here: {found}."


def test_a_quick_run_leaves_out_what_is_not_quick(fake, tmp_path):
    experiment = fake.experiment(not_quick=("fused",))
    _, _, quick = run(experiment, tmp_path, quick=True)
    assert quick.rows and {row["version"] for row in quick.rows} == {"eager"} and not quick.skipped
    _, _, whole = run(experiment, tmp_path)
    assert len(whole.rows) == 6
