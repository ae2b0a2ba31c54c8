import copy
from collections import namedtuple
from enum import Enum

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.support.torch import (
    UnknownArgumentError,
    kind_of_arguments,
)

Pair = namedtuple("Pair", "one other")


class Colour(Enum):
    RED = 1
    BLUE = 2


class Named(torch.Tensor):
    """A tensor of another class."""


class Fields:
    """Looks like a named tuple, and is none."""

    _fields = ("one",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2, 3), torch.ones(3, 2).T),
        (1, 2),
        (1, True),
        (1, 1.0),
        ([torch.ones(2)], (torch.ones(2),)),
        ({"a": 1}, {"b": 1}),
        (None, False),
        (Colour.RED, Colour.BLUE),
        (torch.float32, torch.float64),
        (Pair(1, 2), Pair(1, 3)),
        (0.0, -0.0),
        (torch.contiguous_format, torch.channels_last),
    ],
)
def test_what_differs_is_of_another_kind(one, other):
    assert kind_of_arguments(one, []) != kind_of_arguments(other, [])
    assert kind_of_arguments(one, []) == kind_of_arguments(copy.deepcopy(one), [])
    hash(kind_of_arguments(one, []))


def test_numbers_in_tensors_do_not_matter():
    tensors = []
    arguments = (torch.ones(2), {"x": [torch.zeros(3)]}, Pair(torch.ones(1), torch.Size([2])))
    kind = kind_of_arguments(arguments, tensors)
    assert [len(each) for each in tensors] == [2, 3, 1]
    tensors[0].fill_(5)
    assert kind == kind_of_arguments(arguments, [])


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, torch.ones(2).to_sparse(), torch.ones(2).as_subclass(Named), Fields()],
)
def test_what_nobody_can_tell_apart_is_refused(value):
    with pytest.raises(UnknownArgumentError, match="an argument is a"):
        kind_of_arguments([value], [])


def test_a_number_that_is_none_is_of_its_own_kind():
    assert kind_of_arguments(float("nan"), []) == kind_of_arguments(float("nan"), [])


def test_parameters_are_tensors():
    assert kind_of_arguments(nn.Parameter(torch.ones(2)), []) == kind_of_arguments(
        torch.ones(2), []
    )
