"""Shared by all tests."""

import os

# Before torch is imported: each worker of `pytest -n` has one core, where threads would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Before any test imports Triton, which decides then whether its kernels are compiled or interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Answers that the exercise checks must reject: read by their tests, never imported as modules.
collect_ignore_glob = ["wrong/*"]

# The tests in each share a fixture that takes long to make, or a kernel.
WHOLE_FILES = ("test_print.py", "test_teaching.py", "test_numerics.py", ".ipynb")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `pytest -n 2`, hand out whole files where tests share much, then the other tests one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if file.endswith(WHOLE_FILES) else nodeid

    return Scheduler(config, log)


class Fake:
    """An experiment of three cases on a made-up GPU: it counts its calls, and fails or takes time as told."""

    RUN = {"gpu": "NVIDIA H200", "measured": "2026-11-29T12:00Z", "driver": "1", "versions": {"torch": "2.11"}}

    def __init__(self):
        self.prepared, self.fail, self.time_s = [], {}, 2e-6
        self.measuring = lambda: None

    def experiment(self, **changes):
        from rooflab.experiments import Experiment
        from rooflab.ledger import Demand

        settings = dict(
            name="chain",
            title="fake",
            versions=("eager", "fused"),
            cases=lambda gpu, quick: [{"n": n} for n in ((1,) if quick else (1, 2, 3))],
            prepare=self.prepare,
            demand=lambda case, version: Demand("fake", {"vector": 1}, {"hbm": case["n"]}),
        )
        return Experiment(**settings | changes)

    def prepare(self, case, versions):
        from rooflab import kernels
        from rooflab.experiments.base import Call

        self.prepared.append((case["n"], versions))
        if error := self.fail.get(case["n"]):
            raise error
        return {name: Call(lambda: None, lambda: kernels.Check(0.0, 1.0)) for name in versions}

    def measure(self, rivals, *, cancelled, **_):
        from rooflab import timing

        self.measuring()
        if cancelled():
            raise timing.Cancelled
        time_s = self.time_s
        return {name: timing.Timing(time_s, 1e-6, 1e-5, 4e-6, 11, "cold") for name in rivals}, {}


@pytest.fixture
def fake(monkeypatch):
    """Return a Fake, with all that touches a GPU replaced."""
    from rooflab import provenance, timing
    from rooflab.experiments import Gpu

    found = Fake()
    h200 = Gpu(memory_bytes=141 * 10**9, l2_bytes=50 * 2**20, capability=90)
    monkeypatch.setattr(timing, "has_gpu", lambda: True)
    monkeypatch.setattr(Gpu, "here", classmethod(lambda cls: h200))
    monkeypatch.setattr(provenance, "collect", lambda: dict(found.RUN))
    monkeypatch.setattr(timing, "count_launches", lambda run: 1)
    monkeypatch.setattr(timing, "measure", found.measure)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return found
