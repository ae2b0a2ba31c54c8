from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.models.adapter import copied_array, copied_plainly, leaves, plain_arrays, rebuilt
from tinytorch.models.core import CoreAdapter

Pair = namedtuple("Pair", "first second")


@dataclass
class Result:
    logits: Any
    hidden: Any = None


class Named(UserDict):
    """A dictionary that knows more than its items."""

    title = ""


# ---------------------------------------------------------------- walking


def test_leaves_come_in_order_from_every_kind_of_container():
    nested = ([1, (2,)], {"a": 3, "b": Result(4, [5])}, Named(c=6), Pair(7, 8))
    assert list(leaves(nested)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_class_and_a_text_are_leaves():
    assert list(leaves([Result, "text", None])) == [Result, "text", None]


def test_containers_are_rebuilt_as_what_they_were():
    named = Named(c=3)
    named.title = "kept"
    value = ([1], {"a": 2}, named, Pair(4, 5), OrderedDict(b=6))
    doubled = rebuilt(value, lambda leaf: leaf * 2)
    assert doubled == ([2], {"a": 4}, Named(c=6), Pair(8, 10), OrderedDict(b=12))
    assert [type(each) for each in doubled] == [list, dict, Named, Pair, OrderedDict]
    assert doubled[2].title == "kept"
    assert named["c"] == 3


def test_containers_without_a_change_stay_the_same_objects():
    value = ([1], {"a": Result(2)})
    assert rebuilt(value, lambda leaf: leaf) is value


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        (Tensor([1.0]), "float32"),
        (np.ones(2), "float64"),
        (np.ones(2, np.float16), "float32"),
        (np.float32(1), "float32"),
        (np.arange(3, dtype=np.int8), "int8"),
        (True, "bool"),
        (2.5, "float64"),
        (1j, "complex128"),
    ],
)
def test_numbers_become_arrays_and_half_precision_float32(leaf, dtype):
    (array,) = plain_arrays(leaf)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.asarray(leaf))


@pytest.mark.parametrize("leaf", ["text", None, object(), np.array(["text"])])
def test_what_is_no_number_gives_no_array(leaf):
    assert plain_arrays(leaf) == ()


def test_arrays_do_not_follow_an_output_that_is_overwritten():
    output = Tensor(np.zeros(3))
    arrays = CoreAdapter().arrays({"logits": output})
    output.data[:] = 1
    assert arrays[0].tolist() == [0, 0, 0]


def test_an_output_gives_its_arrays_in_order():
    output = {"loss": 0.5, "rest": Result(Tensor([1.0]), (np.array([2]), "text", None))}
    assert [each.tolist() for each in CoreAdapter().arrays(output)] == [0.5, [1.0], [2]]


# ---------------------------------------------------------------- copies


def test_copies_have_the_same_contents_in_other_memory(rng):
    x, ids = rng.standard_normal((3, 4)), np.arange(3)
    given = (Tensor(x), {"ids": ids}, "text", 7)
    copied = CoreAdapter().copy_inputs(given)
    assert copied[0].data.tolist() == x.tolist()
    assert copied[1]["ids"].tolist() == ids.tolist()
    assert copied[2:] == ("text", 7)
    assert not np.shares_memory(copied[0].data, x)
    assert not np.shares_memory(copied[1]["ids"], ids)


def test_one_tensor_in_two_places_stays_one():
    x = Tensor([1.0])
    first, (second,) = CoreAdapter().copy_inputs((x, [x]))
    assert first is second
    assert first is not x


def test_objects_of_other_kinds_are_handed_on():
    cache = Result(Tensor([1.0]))
    assert CoreAdapter().copy_inputs((cache,))[0] is cache


def test_a_tensor_is_copied_with_its_class_and_its_wish_for_gradients():
    twin = copied_plainly(Parameter(np.ones(2, np.float32)))
    assert type(twin) is Parameter
    assert twin.requires_grad
    assert not copied_plainly(Tensor([1.0])).requires_grad


def test_memory_layout_stays():
    transposed = np.arange(12.0).reshape(3, 4).T
    assert copied_array(transposed).strides == transposed.strides


def test_memory_that_repeats_goes_on_repeating():
    wide = np.broadcast_to(np.arange(3.0), (5, 3))
    twin = copied_array(wide)
    assert twin.strides == wide.strides
    assert twin.tolist() == wide.tolist()
    assert not np.shares_memory(twin, wide)
