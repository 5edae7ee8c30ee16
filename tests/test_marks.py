"""The experiment that changes the marks of a kernel's multiply-adds: without a GPU, and what its record says."""

import os
from types import SimpleNamespace

import pytest
import torch

from rooflab import records
from rooflab.experiments import suite
from rooflab.experiments.base import Call
from rooflab.kernels import Check, _triton


@pytest.mark.parametrize("wrong", [False, True])
def test_a_changed_code_must_leave_the_bits_of_the_proven_one(monkeypatch, wrong):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    out = torch.empty(3)
    first = Call(lambda: out.copy_(torch.tensor([1.0, 2.0, 3.0])), lambda: Check(0.25, 1.0))
    found = suite._as_proven(first, lambda: out.fill_(1.0) if wrong else first.run())()
    assert (found.max_error, found.tolerance) == ((1.0, 0.0) if wrong else (0.25, 1.0))


def test_a_code_that_writes_nothing_does_not_pass(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    out = torch.empty(3)
    first = Call(lambda: out.fill_(2.0), lambda: Check(0.25, 1.0))
    assert suite._as_proven(first, lambda: out)().max_error == 1


def test_a_kernel_from_another_assembler_is_changed_and_loaded_anew(monkeypatch):
    compiled = SimpleNamespace(kernel=b"code", module="loaded", function="loaded", _run="loaded")
    twin = SimpleNamespace(device_caches={0: ({"key": compiled},)})
    monkeypatch.setattr(_triton, "gluon", SimpleNamespace(jit=lambda function: twin))
    monkeypatch.setenv("TRITON_PTXAS_PATH", "settled")
    module, seen = SimpleNamespace(kernel=SimpleNamespace(fn=None)), []

    def run():
        seen.append((module.kernel is twin, os.environ["TRITON_PTXAS_PATH"]))

    plain, code = suite._assembled(module, "kernel", run, "other")
    assert code == b"code" and compiled.module == "loaded" and seen == [(True, "other")]
    changed, code = suite._assembled(module, "kernel", run, "other", lambda code: code[::-1])
    assert code == compiled.kernel == b"edoc" and (compiled.module, compiled.function, compiled._run) == (None,) * 3
    for call in (plain, changed):
        call()
    assert seen[-2:] == [(True, "settled")] * 2 and module.kernel is not twin


RECORD = records.load("h200-sxm", "marks")
CODES = ("fp8_block_specialised", "fp8_block_torch_ptxas", "torch_ptxas_remarked", "specialised_remarked")


def test_each_code_of_the_record_has_the_marks_that_it_was_given():
    (own, other, like_own, like_other, bare) = (
        RECORD.select(name, M=4096)[0]["settings"] for name in (*CODES, "specialised_unmarked")
    )
    assert {each["multiply_adds"] for each in (own, other, like_own, like_other, bare)} == {256}
    assert like_own["keeping"] == own["keeping"] > 1.9 * other["keeping"]
    assert like_other["keeping"] == pytest.approx(other["keeping"], abs=2)
    assert like_other["yielding"] == pytest.approx(other["yielding"], abs=8) and own["yielding"] == 0
    assert bare["keeping"] == 4 and bare["yielding"] == 0


@pytest.mark.parametrize("n", [4096, 8192])
def test_the_marks_explain_the_assemblers(n):
    own, other, like_own, like_other = (RECORD.select(name, M=n)[0]["time_s"] for name in CODES)
    assert other > 1.04 * own
    assert like_other == pytest.approx(other, rel=2e-3)
    assert 0.6 < (other - like_own) / (other - own) < 1
