"""Under which conditions calls are timed: what was done once before, the caches, the device."""

import time
import weakref
from types import SimpleNamespace

import pytest
from two_sides import LITTLE, MUCH, SHORT, TIME_ALONE, TORCH_X, WIDE, nn, torch, torch_model

from tinytorch import Isolated, compare
from tinytorch.comparison import compare as comparing
from tinytorch.comparison.compare import FLOOR_OF_FINISHED
from tinytorch.comparison.sides import LocalSide, WorkloadSide
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import FASTER, SLOWER
from tinytorch.models.workload import Preparation

# ---------------------------------------------------------------- what was done once


def test_a_prepared_model_is_compared_as_it_is_against_copies_of_the_other():
    prepared = torch_model()
    prepared.preparations = (Preparation("compiled", 12.3, 3 << 20),)
    found = compare(torch_model(WIDE), prepared, inputs=TORCH_X, **SHORT)
    assert found.preparations == ((), prepared.preparations)
    assert found.verdict == FASTER
    assert found.break_even.value == pytest.approx(
        12.3 / (found.baseline.median * (1 - found.time_ratio))
    )
    assert found.floor == FLOOR_OF_FINISHED
    assert any("compiled once in 12 s, which a copy" in note for note in found.notes)
    assert any("minimum effect" in note and "candidate" in note for note in found.notes)


def test_a_model_that_the_user_compiles_is_not_timed_while_it_compiles():
    calls = []

    def backend(graph, inputs):
        calls.append("compiled")
        time.sleep(0.3)
        return graph.forward

    model = torch_model()
    compiled = torch.compile(model, backend=backend)
    found = compare(model, compiled, inputs=TORCH_X, **SHORT)
    assert calls == ["compiled"]
    (first,) = found.preparations[1]
    assert first.is_estimate
    assert first.seconds > 0.25
    assert found.candidate.median < 0.3
    assert found.outputs.is_identical


def test_functions_with_a_slow_first_call_are_told_so():
    waits = [0.3]

    def lazy():
        if waits:
            time.sleep(waits.pop())
        return sum(range(1000))

    found = compare(LITTLE, lazy, **TIME_ALONE)
    (first,) = found.preparations[1]
    assert first.seconds > 0.25
    assert found.candidate.median < 0.3


# ---------------------------------------------------------------- cold caches


@pytest.fixture
def _small_caches(monkeypatch):
    monkeypatch.setattr("tinytorch.measure.timing.flushed_bytes", lambda: 1 << 16)


@pytest.mark.usefixtures("_small_caches")
def test_cold_caches_are_asked_for_and_kept_in_the_result():
    found = compare(torch_model(), torch_model(WIDE), inputs=TORCH_X, cache="cold", **SHORT)
    assert found.cache == "cold"
    assert found.verdict == SLOWER
    assert found.pace.loops == (1, 1)
    assert found.pace.untimed_s > 0
    assert found.not_measured["energy"].code == "cold-caches"
    assert compare(LITTLE, MUCH, **TIME_ALONE).cache == "warm"


@pytest.mark.usefixtures("_small_caches")
def test_functions_can_be_compared_with_cold_caches():
    found = compare(LITTLE, MUCH, cache="cold", **TIME_ALONE)
    assert (found.cache, found.verdict) == ("cold", SLOWER)


def test_the_caches_of_other_processes_are_out_of_reach():
    with pytest.raises(SettingError, match=r"cold.*is for sides in this process"):
        compare(Isolated("mlp"), Isolated("mlp"), cache="cold")


# ---------------------------------------------------------------- a device and its driver


def test_what_was_seen_of_a_device_is_in_the_notes_and_the_environment(monkeypatch):
    class Watch:
        notes = ("cuda:0 lowered its clock during the measurement: power cap",)
        looks = 0

        def __init__(self, device):
            self.device = device

        def look(self):
            Watch.looks += 1

        def to_dict(self):
            return {"name": "imaginary"}

    monkeypatch.setattr(comparing, "DeviceWatch", Watch)
    monkeypatch.setattr(LocalSide, "devices", ("cuda:0",))
    found = compare(LITTLE, MUCH, **TIME_ALONE)
    assert Watch.looks == found.n
    assert Watch.notes[0] in found.notes
    assert found.environment["devices"] == {"cuda:0": {"name": "imaginary"}}


def test_without_a_device_no_driver_is_asked(monkeypatch):
    monkeypatch.setattr(comparing, "DeviceWatch", None)
    assert "devices" not in compare(LITTLE, MUCH, **TIME_ALONE).environment


def test_two_models_that_do_not_fit_are_compared_with_fewer_copies(monkeypatch):
    class OutOfMemoryError(RuntimeError):
        pass

    alive = []

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def __deepcopy__(self, memo):
            if sum(reference() is not None for reference in alive) >= 1:
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
            twin = Large()
            alive.append(weakref.ref(twin))
            return twin

        def forward(self, x):
            return self.linear(x)

    monkeypatch.setattr(
        comparing,
        "DeviceWatch",
        lambda device: SimpleNamespace(device=device, notes=(), look=lambda: None, to_dict=dict),
    )
    monkeypatch.setattr(WorkloadSide, "devices", ("cuda:0",))
    found = compare(Large(), Large(), inputs=TORCH_X, **TIME_ALONE)
    notes = [note for note in found.notes if "no room for copies of both models" in note]
    assert len(notes) == 1
    assert found.floor == FLOOR_OF_FINISHED
