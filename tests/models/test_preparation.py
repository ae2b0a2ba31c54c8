import json
from functools import partial

import pytest
from parts import require_part

from tinytorch.core.layers import Linear
from tinytorch.models.workload import (
    FIRST_CALL,
    Preparation,
    is_compiled,
    preparations_of,
    prepares_itself,
    while_planning,
)

torch = require_part("torch")
nn = torch.nn

COMPILED = Preparation("compiled", 12.0, 3 << 20)
CAPTURED = Preparation("captured", 0.5)


class Prepared(nn.Module):
    def __init__(self, *preparations):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.preparations = preparations

    def forward(self, x):
        return self.linear(x)


def test_a_preparation_survives_json():
    for each in (COMPILED, CAPTURED):
        assert Preparation.from_dict(json.loads(json.dumps(each.to_dict()))) == each


def test_only_a_first_call_is_an_estimate():
    assert Preparation(FIRST_CALL, 1.0).is_estimate
    assert not COMPILED.is_estimate


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Prepared(COMPILED, CAPTURED), (COMPILED, CAPTURED)),
        (Prepared(COMPILED).forward, (COMPILED,)),
        (partial(Prepared(COMPILED), 1), (COMPILED,)),
        (nn.Sequential(nn.Linear(2, 2), Prepared(CAPTURED)), (CAPTURED,)),
        (Prepared(), ()),
        (nn.Linear(2, 2), ()),
        (Linear(2, 2, rng=0), ()),
        (len, ()),
    ],
)
def test_what_was_done_to_a_model_or_its_layers_is_found(model, expected):
    assert preparations_of(model) == expected


def test_a_wrapper_that_passes_attributes_on_does_not_count_twice():
    class Wrapper(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("model"), name)

    assert preparations_of(Wrapper(Prepared(COMPILED))) == (COMPILED,)


def test_something_else_of_that_name_is_none():
    model = Prepared()
    model.preparations = ["cleaned the kitchen"]
    assert preparations_of(model) == ()


@pytest.mark.parametrize("given", [(), [], [COMPILED], (COMPILED,)])
def test_a_model_that_keeps_preparations_prepares_itself(given):
    model = Prepared()
    model.preparations = given
    assert prepares_itself(nn.Sequential(model))
    assert preparations_of(model) == tuple(given)


def compiled_method(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


class Decorated(nn.Module):
    @torch.compile(backend="eager")
    def forward(self, x):
        return x + 1


@pytest.mark.parametrize(
    "model",
    [
        torch.compile(Prepared(), backend="eager"),
        nn.Sequential(torch.compile(Prepared(), backend="eager")),
        compiled_in_place(Prepared()),
        compiled_method(Prepared()),
        Decorated(),
        torch.compile(lambda x: x + 1, backend="eager"),
    ],
)
def test_compiled_models_are_known(model):
    assert is_compiled(model)
    assert prepares_itself(model)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.ReLU().forward, Linear(2, 2, rng=0), len])
def test_others_are_not_taken_for_compiled(model):
    assert not is_compiled(model)
    assert not prepares_itself(model)


def test_what_a_plan_has_spent_is_told_apart():
    spent = [Preparation("compiled", 2.0, 10), Preparation("captured", 0.5)]
    assert while_planning(spent) == Preparation("compiled and captured while planning", 2.5)
    assert while_planning([]) == Preparation("tried while planning", 0)
