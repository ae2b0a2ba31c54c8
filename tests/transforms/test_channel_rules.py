"""Each rule, seen through a small function of tensors: which indices go together, which stay."""

import inspect

import numpy as np
import pytest

from tinytorch.core import operations as elementwise
from tinytorch.core import operations as losses
from tinytorch.core.attention import scaled_dot_product_attention
from tinytorch.core.layers import GELU, Linear, ReLU, Tanh
from tinytorch.core.module import Module
from tinytorch.core.operations import Operation
from tinytorch.core.tensor import Tensor, apply, concatenate, where
from tinytorch.models.workload import Workload
from tinytorch.transforms.support.channels import RULES, rule_for, trace_channels

LET_NOTHING_THROUGH = {
    elementwise.Where,
    losses.BinaryCrossEntropy,
    losses.BinaryCrossEntropyWithLogits,
    losses.CrossEntropy,
    elementwise.Rotary,  # turns pairs of channels
}
ABSTRACT = {Operation, elementwise.Binary}


class Between(Module):
    """A layer of six outputs, something between, and a layer that takes it in."""

    def __init__(self, between, width, last=None):
        self.first = Linear(5, 6, rng=0)
        self.last = Linear(width, 4, rng=1) if last is None else last
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def units_of(between, width=6, rows=3, *, last=None):
    """Give the outputs of the first layer that go together, each with the inputs of the last."""
    x = Tensor(np.random.default_rng(0).standard_normal((rows, 5)).astype(np.float32))
    graph = trace_channels(Workload("between", Between(between, width, last), (x,)))
    found = []
    for family in graph.families:
        for unit in family.units:
            by_place = {f"{place.tensor}:{place.axis}": each for place, each in unit.items()}
            found.append((by_place.get("first.weight:1"), by_place.get("last.weight:0")))
    return sorted(found)


def why_fixed(between, width=6, rows=3):
    x = Tensor(np.random.default_rng(0).standard_normal((rows, 5)).astype(np.float32))
    graph = trace_channels(Workload("between", Between(between, width), (x,)))
    return {place.tensor: why for place, why in graph.fixed.items() if place.axis == 1}.get(
        "first.weight"
    )


SINGLE = [((index,), (index,)) for index in range(6)]


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x,
        lambda x: GELU()(ReLU()(Tanh()(-x))),
        lambda x: (x * 2 + 1) / 3 - x,
        lambda x: x**2,
        lambda x: x.T.T,
        lambda x: x.reshape(1, 3, 6).reshape(3, 6),
        lambda x: x[:, :],
        lambda x: x[None][0],
        lambda x: x[[2, 0]],
    ],
)
def test_channels_pass_one_by_one(between):
    assert units_of(between) == SINGLE


def test_a_split_keeps_the_parts_of_its_first_axis_together():
    assert units_of(lambda x: x.reshape(3, 2, 3).reshape(3, 6)) == [
        ((0, 1, 2), (0, 1, 2)),
        ((3, 4, 5), (3, 4, 5)),
    ]


def test_flattened_images_have_a_run_of_inputs_for_each_channel():
    spread = np.ones((1, 1, 4), np.float32)
    assert units_of(lambda x: (x.reshape(3, 6, 1) * Tensor(spread)).reshape(3, 24), 24) == [
        ((index,), tuple(range(4 * index, 4 * index + 4))) for index in range(6)
    ]


def test_channels_last_are_found_again_when_flattened():
    spread = np.ones((1, 2, 1), np.float32)
    assert units_of(lambda x: (x.reshape(3, 1, 6) * Tensor(spread)).reshape(3, 12), 12) == [
        ((index,), (index, index + 6)) for index in range(6)
    ]


def test_joined_tensors_keep_their_own_channels():
    fixed = Tensor(np.ones((3, 2), np.float32))
    assert units_of(lambda x: concatenate([x, x], 1), 12) == [
        ((index,), (index, index + 6)) for index in range(6)
    ]
    assert units_of(lambda x: concatenate([fixed, x], 1), 8) == [
        ((index,), (index + 2,)) for index in range(6)
    ]


class Sum(Module):
    def __init__(self):
        self.one, self.other, self.last = Linear(5, 6, rng=0), Linear(5, 6, rng=1), Linear(6, 2)

    def forward(self, x):
        return self.last(self.one(x) + self.other(x))


def test_sums_tie_what_they_add():
    x = Tensor(np.ones((3, 5), np.float32))
    (family,) = trace_channels(Workload("sum", Sum(), (x,))).families
    assert {place.tensor for place in family.producers} == {
        "one.weight", "one.bias", "other.weight", "other.bias",
    }  # fmt: skip
    assert family.consumers == {("last.weight", 0)}
    assert [set(unit.values()) for unit in family.units] == [{(index,)} for index in range(6)]


@pytest.mark.parametrize(
    ("between", "width", "reason"),
    [
        (lambda x: x + Tensor(np.ones((3, 6), np.float32)), 6, "does not shrink with the model"),
        (lambda x: x[:, 1:], 5, "taken by their numbers"),
        (lambda x: x[:, 2][:, None], 1, "taken by their numbers"),
        (lambda x: x.sum(axis=1, keepdims=True), 1, "a Sum is computed over all"),
        (lambda x: x.mean(axis=-1).reshape(3, 1), 1, "a Mean is computed over all"),
        (lambda x: x @ x.T, 3, "two things that were computed"),
        (lambda x: where(x.data > 0, x, x), 6, "no rule for how channels pass through Where"),
    ],
)
def test_channels_stay_where_something_needs_all_of_them(between, width, reason):
    assert reason in why_fixed(between, width)


def test_channels_of_several_rows_in_one_axis_are_found_in_each():
    assert units_of(lambda x: x.reshape(1, 18), 18) == [
        ((index,), (index, index + 6, index + 12)) for index in range(6)
    ]


def test_heads_are_units_and_the_width_of_a_head_is_not():
    def attend(x):
        heads = x.reshape(1, 3, 3, 2).transpose(1, 2)
        return scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(3, 6)

    assert units_of(attend) == [((0, 1), (0, 1)), ((2, 3), (2, 3)), ((4, 5), (4, 5))]


def operations():
    for name, each in vars(elementwise).items():
        if inspect.isclass(each) and issubclass(each, Operation) and not name.startswith("_"):
            yield each


def test_every_operation_has_a_rule_or_is_known_to_have_none():
    assert set(operations()) - set(RULES) == LET_NOTHING_THROUGH | ABSTRACT


def test_an_unknown_operation_lets_no_channel_go():
    class Swapped(Operation):
        def forward(self, x):
            return x[:, ::-1]

    assert "pass through Swapped" in why_fixed(lambda x: apply(Swapped(), x))
    assert rule_for(Swapped()) not in RULES.values()
