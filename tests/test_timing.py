"""The clock of a measurement, on a simulated GPU: a real one is in tests/gpu/test_timing.py."""

import pytest
import torch

from rooflab import timing

# Sustained -----------------------------------------------------------------------------------------------------------


class Clock:
    """A GPU that takes as long as each call says; calls of the first quarter second run at twice the speed."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        clock = self

        class Event:
            def __init__(self, enable_timing):
                self.at = None

            def record(self):
                self.at = clock.now

            def synchronize(self):
                pass

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        monkeypatch.setattr(timing, "require_gpu", lambda: None)
        monkeypatch.setattr(torch.cuda, "Event", Event)

    def call(self, name, time_s):
        def run():
            same = [each for each in reversed(self.calls)]
            busy = next((i for i, each in enumerate(same) if each != name), len(same)) * time_s
            self.calls.append(name)
            self.now += time_s / 2 if busy < 0.1 else time_s

        return run


def test_sustained_times_the_second_half_of_a_stretch_of_each_rival_in_turn(monkeypatch):
    clock = Clock(monkeypatch)
    rivals = {"a": clock.call("a", 1e-3), "b": clock.call("b", 4e-3)}
    seen = iter(range(100))
    found, observed = timing.sustained(rivals, stretch_s=0.5, rounds=3, observe=lambda: {"order": next(seen)})
    # The burst at the start of each stretch, at half the time, is not in it.
    assert found["a"].time_s == pytest.approx(1e-3) and found["b"].time_s == pytest.approx(4e-3)
    assert found["a"].samples == 3 and found["a"].cache == "warm"
    stretches = "".join(name for i, name in enumerate(clock.calls) if i == 0 or clock.calls[i - 1] != name)
    assert stretches == "abab" and clock.calls.count("a") > 3 * 500, "forth and back, half a second each"
    assert observed == {"a": {"order": 3}, "b": {"order": 2}}


def test_sustained_can_be_cancelled(monkeypatch):
    clock = Clock(monkeypatch)
    with pytest.raises(timing.Cancelled):
        timing.sustained({"a": clock.call("a", 1e-3)}, cancelled=lambda: True)
    assert not clock.calls


# The host's lead ------------------------------------------------------------------------------------------------------


class Machine:
    """A host that queues kernels, at most `depth` at a time, and a GPU that takes them one after the other."""

    def __init__(self, monkeypatch, depth):
        self.host_s = self.gpu_s = 0.0  # the time on the host's clock, and when the GPU has done all that is queued
        self.ends, self.depth, self.slowdown = [], depth, 1.0
        machine = self

        class Event:
            def __init__(self, enable_timing):
                self.at = None

            def record(self):
                self.at = max(machine.host_s, machine.gpu_s)

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        monkeypatch.setattr(timing, "require_gpu", lambda: None)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda clocks: self.launch(0.0, clocks / 2e9))
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        for clock in ("perf_counter", "monotonic"):
            monkeypatch.setattr(timing.time, clock, lambda: self.host_s)

    def launch(self, host_s, gpu_s):
        self.host_s += host_s * self.slowdown
        if len(self.ends) >= self.depth:  # the queue is full until the oldest of them has ended
            self.host_s = max(self.host_s, self.ends[-self.depth])
        self.gpu_s = max(self.host_s, self.gpu_s) + gpu_s
        self.ends.append(self.gpu_s)

    def synchronize(self):
        self.host_s = max(self.host_s, self.gpu_s)

    def call(self, kernels, host_s, gpu_s):
        return lambda: [self.launch(host_s, gpu_s) for _ in range(kernels)]


@pytest.mark.parametrize("depth", [700, 1024])
def test_a_call_is_not_charged_for_a_host_that_fell_behind_in_another(monkeypatch, depth):
    """As in a decode step: a thousand short kernels, fewer that are queued slowly, a graph after a long check."""
    machine = Machine(monkeypatch, depth)
    shapes = {"eager": (1133, 18e-6, 6.4e-6), "compiled": (451, 14e-6, 11.7e-6), "graph": (1, 1e-3, 4.9e-3)}
    rivals = {name: machine.call(*shape) for name, shape in shapes.items()}
    found, _ = timing.measure(rivals, cache="warm", launches=1133 + 451 + 1)
    for name in ("compiled", "graph"):
        kernels, _, gpu_s = shapes[name]
        assert found[name].time_s == pytest.approx(kernels * gpu_s, rel=1e-3), name
    assert found["eager"].wall_s == pytest.approx(1133 * 18e-6, rel=0.1)


def test_short_calls_are_queued_behind_one_pause(monkeypatch):
    machine = Machine(monkeypatch, 1024)
    rivals = {"few": machine.call(2, 10e-6, 1e-6), "long": machine.call(1, 30e-6, 20e-6)}
    pauses, hold = [], timing._hold
    monkeypatch.setattr(timing, "_hold", lambda host_s: pauses.append(host_s) or hold(host_s))
    found, _ = timing.measure(rivals, cache="warm", budget_s=0.01, launches=3)
    assert found["few"].time_s == pytest.approx(2e-6) and found["long"].time_s == pytest.approx(20e-6)
    assert found["few"].samples > 16 and len(pauses) < found["few"].samples / 4


@pytest.mark.parametrize("host_s", [60e-6, 4e-3, 15e-3])
def test_a_host_that_gets_slower_after_the_warm_up_does_not_show(monkeypatch, host_s):
    machine, warm_up = Machine(monkeypatch, 1024), timing._warm_up

    def then_slower(*args):
        found = warm_up(*args)
        machine.slowdown = 1.9
        return found

    monkeypatch.setattr(timing, "_warm_up", then_slower)
    rivals = {name: machine.call(1, host_s, 20e-6) for name in "abcde"}
    found, _ = timing.measure(rivals, cache="warm", budget_s=0.01, launches=5)
    for timed in found.values():
        assert timed.p20_s == pytest.approx(20e-6) and timed.p80_s == pytest.approx(20e-6)
