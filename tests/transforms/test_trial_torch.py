import math
from time import sleep

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import bits_of, is_unchanged, mlp, workload

from tinytorch.comparison.outputs import compare_outputs
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.support import torch as trial_torch
from tinytorch.transforms.support.torch import (
    CALLS,
    CALLS_IF_LONG,
    run_once,
    try_change,
    why_unlike,
)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Scaled(nn.Module):
    """A model whose outputs are off by a factor, from the second call on."""

    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor, self.calls = model, factor, 0

    def forward(self, *inputs, **keywords):
        self.calls += 1
        return self.model(*inputs, **keywords) * (self.factor if self.calls > 1 else 1)


class Writing(nn.Module):
    """Writes to its input."""

    def forward(self, x):
        return x.add_(1)


class Counting(nn.Module):
    """Keeps state in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@pytest.fixture
def small():
    return workload(mlp().eval(), 2, 128)


@pytest.mark.parametrize(
    ("long_call_s", "expected"), [(math.inf, 2 * CALLS), (0.0, 2 * CALLS_IF_LONG)]
)
def test_long_calls_are_made_less_often(small, monkeypatch, long_call_s, expected):
    monkeypatch.setattr(trial_torch, "LONG_CALL_S", long_call_s)
    calls = []
    small.model.register_forward_pre_hook(lambda *_: calls.append(1))  # copies have the same
    assert try_change(small, lambda model: model).works
    assert len(calls) == expected


def test_what_goes_wrong_in_the_second_of_two_long_calls_is_seen(small, monkeypatch):
    monkeypatch.setattr(trial_torch, "LONG_CALL_S", 0.0)
    assert not try_change(small, lambda model: Scaled(model, 1.1)).works


def test_a_change_that_keeps_the_outputs_works(small):
    trial = try_change(small, lambda model: model)
    assert trial.works
    assert trial.difference.max_relative_error == 0
    assert trial.seconds > 0
    assert trial.nbytes is None


def test_later_calls_count_too(small):
    trial = try_change(small, lambda model: Scaled(model, 1.01))
    assert not trial.works
    assert "its outputs would change by 0.0" in trial.reason
    assert "more than the 0.0001 that are allowed" in trial.reason


def test_the_tolerance_is_the_callers(small):
    trial = try_change(small, lambda model: Scaled(model, 1.01), tolerance=0.05)
    assert trial.works
    assert trial.difference.max_relative_error == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_outputs_that_are_no_numbers_do_not_work(small, factor):
    assert "its outputs would be wrong" in try_change(small, lambda m: Scaled(m, factor)).reason


def test_other_shapes_do_not_work(small):
    trial = try_change(small, lambda model: nn.Sequential(model, nn.Flatten(0)))
    assert "its outputs would be wrong" in trial.reason


def test_an_error_is_the_reason_in_one_line(small):
    def failing(model):
        raise RuntimeError("no such instruction\nand more")

    assert try_change(small, failing).reason.endswith("no such instruction")


def test_a_change_that_takes_too_long_is_given_up(small):
    def endless(model):
        while True:
            sleep(0.01)

    assert "did not return within 0.2 s" in try_change(small, endless, limit_s=0.2).reason


def test_an_interruption_is_not_swallowed(small):
    def interrupted(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_change(small, interrupted)
    assert try_change(small, lambda model: model).works


def test_the_workload_stays_as_it_is(small):
    bits, inputs = bits_of(small.model), small.inputs[0].clone()
    state = torch.get_rng_state()

    def spoiling(model):
        with torch.no_grad():
            for each in model.parameters():
                each.zero_()
        return model

    assert not try_change(small, spoiling).works
    assert is_unchanged(small.model, bits)
    assert torch.equal(small.inputs[0], inputs)
    assert torch.equal(torch.get_rng_state(), state)


def test_models_that_write_to_their_inputs_get_fresh_ones():
    case = Workload("writing", Writing(), (torch.ones(3),))
    trial = try_change(case, lambda model: model)
    assert trial.works
    assert torch.equal(case.inputs[0], torch.ones(3))


def test_models_with_state_are_compared_call_by_call():
    case = Workload("counting", Counting(), (torch.ones(3),))
    assert try_change(case, lambda model: model).works
    assert float(case.model.calls) == 0


def test_random_layers_draw_the_same_on_both_sides():
    case = Workload("dropping", nn.Dropout(0.5).train(), (torch.ones(64),))
    assert try_change(case, lambda model: model).works


def test_keywords_are_passed_on():
    class Keyed(nn.Module):
        def forward(self, x, *, factor):
            return x * factor

    case = Workload("keyed", Keyed(), (torch.ones(3),), keywords={"factor": torch.tensor(2.0)})
    assert try_change(case, lambda model: model).works
    assert not try_change(case, lambda model: Scaled(model, 3)).works


def test_one_run_gives_plain_arrays(small):
    (found,) = run_once(TorchAdapter(), small, small.model)
    with torch.no_grad():
        expected = small.model(*small.inputs)
    assert np.array_equal(found, expected.numpy())
    assert CALLS >= 2


def test_whole_numbers_must_all_be_the_same():
    before, after = (np.array([1, 2, 3, 4]),), (np.array([1, 2, 3, 5]),)
    assert why_unlike(compare_outputs(before, before), 0.1) == ""
    assert "whole numbers" in why_unlike(compare_outputs(before, after), 10.0)


@needs_cuda
def test_memory_that_stays_taken_is_counted():
    case = workload(mlp().eval(), 2, 128)
    case = Workload("device", case.model.cuda(), (case.inputs[0].cuda(),))
    kept = []

    def taking(model):
        kept.append(torch.zeros(2**20, device="cuda"))
        return model

    assert try_change(case, taking).nbytes >= 4 * 2**20


class Padded(nn.Module):
    """Gives sequences; `padding` is what stands where the mask hides."""

    def __init__(self, padding=0.0):
        super().__init__()
        self.padding = padding

    def forward(self, x, attention_mask):
        return torch.where(attention_mask[..., None].bool(), x, self.padding)


def test_what_a_mask_hides_decides_nothing():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    x = torch.ones(2, 3, 4)
    case = Workload("padded", Padded(), (x, mask))
    trial = try_change(case, lambda model: Padded(9.0))
    assert trial.works, trial.reason
    assert trial.difference.outputs[0].left_out == 2
    everywhere = Workload("padded", Padded(), (x, torch.ones_like(mask)))
    assert not try_change(everywhere, lambda model: Scaled(model, 3)).works
