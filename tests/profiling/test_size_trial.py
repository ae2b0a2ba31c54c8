from collections import UserDict

import numpy as np
import pytest

from tinytorch import Tensor, Workload, load_workload
from tinytorch.core.layers import Dropout, Linear, Sequential
from tinytorch.errors import ModelError, SettingError
from tinytorch.profiling.size_runs import (
    MEMORY,
    REFUSED,
    SizeTrial,
    failure_kind,
    find_axis,
)


def small(rows=2):
    model = Sequential(Linear(4, 3))
    model.eval()
    return Workload("small", model, (Tensor(np.ones((rows, 4), np.float32)),))


class Picky:
    """A model that takes up to four examples, and has no memory for more than two."""

    def forward(self, x):
        if x.shape[0] > 4:
            raise ValueError("too many")
        if x.shape[0] > 2:
            raise MemoryError("no room")
        return x


def picky():
    return Workload("picky", Picky(), (Tensor(np.ones((1, 4), np.float32)),))


def test_the_facts_are_those_of_the_workload():
    facts = SizeTrial(small(), "batch").facts
    assert (facts.name, facts.framework, facts.device) == ("small", "core", "cpu")
    assert (facts.axis, facts.usual, facts.items_per_size) == (0, 2, 1)
    assert facts.resident_bytes == 4 * (4 * 3 + 3)
    assert facts.notes == ()


def test_inputs_may_come_in_any_mapping():
    batch = UserDict(x=Tensor(np.ones((2, 5, 4), np.float32)))  # as tokenizers give them
    layer = Linear(4, 3)
    workload = Workload("mapped", lambda batch: layer(batch["x"]), (batch,))
    assert SizeTrial(workload, "sequence").facts.items_per_size == 2


def test_tokens_are_counted_in_every_example():
    facts = SizeTrial(load_workload("gpt"), "sequence").facts
    assert (facts.axis, facts.usual, facts.items_per_size) == (1, 64, 1)
    two = Workload("two", Picky(), (Tensor(np.ones((2, 3, 4), np.float32)),))
    assert SizeTrial(two, "sequence").facts.items_per_size == 2
    assert SizeTrial(two, "sequence", axis=2).facts.items_per_size == 6


def test_an_attempt_has_a_time_and_a_peak():
    trial = SizeTrial(small(), "batch")
    with trial.environment():
        attempts = [trial.attempt(size) for size in (1, 64)]
    assert all(each.works and each.seconds > 0 for each in attempts)
    # 63 more rows of four inputs and three outputs, and as many before the bias is added
    assert attempts[1].peak_bytes - attempts[0].peak_bytes >= 63 * 7 * 4


def test_a_brief_attempt_is_one_call():
    workload = small()
    calls = []
    workload.model.register_forward_hook(lambda *_: calls.append(1))
    trial = SizeTrial(workload, "batch")
    with trial.environment():
        found = trial.attempt(4, briefly=True)
    assert (found.works, found.peak_bytes, len(calls)) == (True, None, 1)


def test_what_a_model_raises_is_the_answer():
    trial = SizeTrial(picky(), "batch")
    assert trial.attempt(2).works
    out_of_memory, refused = trial.attempt(3), trial.attempt(5)
    assert (out_of_memory.kind, refused.kind) == (MEMORY, REFUSED)
    assert "no room" in out_of_memory.failure
    assert "ValueError: too many" in refused.failure


def test_a_peak_that_nobody_can_record_has_a_reason():
    found = SizeTrial(picky(), "batch").attempt(1)
    assert found.peak_bytes is None
    assert "no operation of the model could be recorded" in found.note


def test_a_time_is_that_of_one_call():
    trial = SizeTrial(small(), "batch")
    with trial.environment():
        assert trial.time(8, 3) > 0


def test_a_model_that_fails_while_it_is_timed_is_an_error_of_the_model():
    with pytest.raises(ModelError, match="ValueError: too many"):
        SizeTrial(picky(), "batch").time(5, 1)


def test_the_model_and_its_inputs_stay_as_they_were():
    workload = small()
    before = {name: value.copy() for name, value in workload.model.state_dict().items()}
    trial = SizeTrial(workload, "batch")
    with trial.environment():
        trial.attempt(16)
    after = workload.model.state_dict()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    assert workload.inputs[0].shape == (2, 4)


def test_training_mode_is_noted():
    model = Sequential(Linear(4, 3), Dropout(0.5))
    workload = Workload("training", model, (Tensor(np.ones((2, 4), np.float32)),))
    model.train()
    assert "training mode" in SizeTrial(workload, "batch").facts.notes[0]


def test_memory_that_is_free_is_known():
    assert SizeTrial(small(), "batch").free_bytes() > 0


def test_an_axis_that_nobody_can_find_is_asked_for():
    single = Workload("single", Linear(4, 3), (Tensor(np.ones(4, np.float32)),))
    with pytest.raises(SettingError, match=r"may count examples or features.*axis=0"):
        find_axis(single, "batch")
    assert find_axis(single, "batch", 0) == 0
    with pytest.raises(SettingError, match="no input has an axis 1"):
        find_axis(single, "sequence")
    with pytest.raises(SettingError, match="from 0 on"):
        find_axis(single, "batch", -1)
    with pytest.raises(SettingError, match="has no example inputs"):
        find_axis(Workload("none", Linear(4, 3), ()), "batch")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), MEMORY),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), REFUSED),
        (IndexError("index out of range in self"), REFUSED),
    ],
)
def test_running_out_of_memory_is_told_from_the_rest(error, kind):
    assert failure_kind(error) == kind
    wrapped = ModelError("a layer raised")
    wrapped.__cause__ = error
    assert failure_kind(wrapped) == kind
