from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tiny_transformers import tiny

from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.models.workload import Preparation, Workload
from tinytorch.transforms.support.torch import (
    Trial,
    changed_tensors,
    observe_call,
    refusal,
    rounding_of,
    trial_note,
    why_unchangeable,
)

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Frozen:
    tensor: Any
    word: str = "as it is"


def doubled(tensor):
    return 2 * tensor


class Called(nn.Module):
    """A model that calls one of its two layers, and a function on what it is given."""

    def __init__(self, act=lambda *inputs: None):
        super().__init__()
        self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))
        self.act = act

    def forward(self, *inputs, **keywords):
        self.act(self, *inputs, **keywords)
        return self.used(torch.ones(1, 3))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: (x, "word"),
        lambda x: [x, [x, None]],
        lambda x: {"a": x, "b": 3},
        lambda x: Pair(x, 1),
        lambda x: UserDict(a=x),
        lambda x: Frozen(x),
        lambda x: (Frozen([x]),),
    ],
)
def test_tensors_are_changed_wherever_they_are(wrap):
    changed = changed_tensors(wrap(torch.ones(2)), doubled)
    expected = wrap(torch.full((2,), 2.0))
    assert type(changed) is type(expected)
    assert repr(changed) == repr(expected)


def test_what_is_given_stays_as_it_was():
    value = {"a": [torch.ones(2)], "b": Frozen(torch.ones(2))}
    changed_tensors(value, doubled)
    assert repr(value) == repr({"a": [torch.ones(2)], "b": Frozen(torch.ones(2))})


def test_outputs_of_transformers_keep_their_class_and_attributes():
    case = tiny("gpt2")
    with torch.no_grad():
        output = case.model(*case.inputs)
    changed = changed_tensors(output, doubled)
    assert type(changed) is type(output)
    assert torch.equal(changed.logits, 2 * output.logits)
    assert torch.equal(changed[0], changed["logits"])
    assert changed.past_key_values is output.past_key_values


def test_other_objects_are_given_as_they_are():
    thing = object()
    assert changed_tensors([thing], doubled)[0] is thing


def test_a_call_shows_which_layers_ran_and_what_came_out():
    seen = observe_call(Workload("case", Called(), ()))
    assert seen.called == {"", "used"}
    assert seen.output_dtypes == (torch.float32,)
    assert (seen.writes_inputs, seen.written_buffers, seen.error) == (False, (), "")


@pytest.mark.parametrize(
    ("act", "inputs"),
    [
        (lambda self, x: x.add_(1), (torch.zeros(2),)),
        (lambda self, x: x.append(1), ([torch.zeros(2)],)),
        (lambda self, x: x.update(more=1), ({"x": torch.zeros(2)},)),
        (lambda self, x: x.numpy().fill(3), (torch.zeros(2),)),
        (lambda self, x: x["deep"][0].zero_(), ({"deep": [torch.ones(2)]},)),
    ],
)
def test_writing_into_inputs_is_seen_and_harms_nobody(act, inputs):
    before = repr(inputs)
    assert observe_call(Workload("case", Called(act), inputs)).writes_inputs
    assert repr(inputs) == before


def put_new(self):
    self.seen = self.seen + 1


@pytest.mark.parametrize("act", [lambda self: self.seen.add_(1), put_new])
def test_state_with_fractions_is_seen_and_stays(act):
    model = Called(act)
    assert observe_call(Workload("case", model, ())).written_buffers == ("seen",)
    assert model.seen.item() == 0


def test_statistics_that_a_norm_takes_in_training_are_state():
    case = Workload("case", nn.BatchNorm1d(3).train(), (torch.rand(4, 3),))
    assert observe_call(case).written_buffers == ("running_mean", "running_var")
    assert torch.equal(case.model.running_mean, torch.zeros(3))


def test_a_buffer_of_nan_is_no_change():
    model = Called()
    model.seen.fill_(float("nan"))
    assert observe_call(Workload("case", model, ())).written_buffers == ()


def test_counters_are_no_state_with_fractions():
    case = Workload("case", Called(lambda self: self.count.add_(1)), ())
    assert observe_call(case).written_buffers == ()


def test_an_error_of_the_model_is_part_of_the_answer():
    seen = observe_call(Workload("case", nn.Linear(3, 2), (torch.zeros(1, 4),)))
    assert seen.error.startswith("it cannot be called: RuntimeError: mat1 and mat2 shapes")


def test_random_numbers_go_on_as_if_nothing_had_been_called():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    observe_call(Workload("case", nn.Dropout(), (torch.ones(4),)))
    assert torch.equal(torch.rand(3), expected)


def test_a_prepared_model_is_left_alone():
    model = nn.Linear(3, 2)
    assert why_unchangeable(model) == ""
    model.preparations = (Preparation("compiled", 2.0),)
    assert why_unchangeable(model) == (
        "it was prepared already (compiled); change the model before that"
    )


def test_a_function_is_left_alone():
    assert why_unchangeable(lambda x: x) == (
        "it is a function, and only the layers of a Module can be changed"
    )


def test_a_failed_trial_in_training_mode_comes_with_advice():
    model = nn.Linear(3, 2)
    trial = Trial("too far", OutputDifference())
    assert refusal(model, trial) == "too far; it is in training mode; call eval() on it first"
    assert refusal(model, Trial("TypeError: no")) == "TypeError: no"
    assert refusal(model.eval(), trial) == "too far"


def test_the_least_precise_weight_says_how_far_rounding_goes():
    assert rounding_of(nn.ReLU()) == rounding_of(nn.Linear(2, 2)) == 1e-4
    assert rounding_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())) == 2.0**-6
    assert rounding_of(nn.Linear(2, 2).bfloat16()) == 2.0**-3


def test_the_note_says_how_far_outputs_moved():
    moved = ArrayDifference((2,), max_error=0.2, max_relative_error=0.1, is_identical=False)
    same = ArrayDifference((2,), max_error=0.0, max_relative_error=0.0)
    whole = ArrayDifference((2,), equal_share=1.0)
    texts = [trial_note(Trial(difference=OutputDifference((d,)))) for d in (moved, same, whole)]
    assert "outputs change by 1.0e-01 of the largest one" in texts[0]
    assert "bit for bit" in texts[1]
    assert "no fractions to compare" in texts[2]
