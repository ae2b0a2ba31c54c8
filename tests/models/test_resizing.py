from typing import NamedTuple

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import (
    Workload,
    axis_length,
    axis_number,
    resize_inputs,
    resize_workload,
)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_real_values_are_repeated_and_cut():
    x = np.array([[1, 2, 3]])
    (longer,) = resize_inputs((x,), 1, 5)
    (shorter,) = resize_inputs((x,), 1, 2)
    assert longer.tolist() == [[1, 2, 3, 1, 2]]
    assert shorter.tolist() == [[1, 2]]


def test_tensors_stay_what_they_are():
    ids = Tensor(np.arange(6).reshape(2, 3))
    (more,) = resize_inputs((ids,), 0, 3)
    assert isinstance(more, Tensor)
    assert more.dtype == ids.dtype
    assert more.data.tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def test_tensors_of_torch_keep_dtype_and_are_contiguous():
    torch = require_part("torch")
    x = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4).requires_grad_()
    (more,) = resize_inputs((x,), 1, 7)
    assert more.shape == (2, 7, 4)
    assert more.dtype == torch.float64
    assert more.is_contiguous()
    assert not more.requires_grad
    assert torch.equal(more[:, 3:6], x[:, :3])


def test_inputs_as_long_as_the_first_change_with_it():
    ids, mask, scale = np.ones((2, 8)), np.ones((2, 8)), np.ones((2, 5))
    resized = resize_inputs((ids, mask, scale, 3), 1, 16)
    assert [np.shape(each) for each in resized] == [(2, 16), (2, 16), (2, 5), ()]


def test_inputs_inside_of_containers_change_too():
    inputs = (
        {"ids": np.ones((1, 4)), "flag": True},
        [np.ones((1, 2))],
        Pair(Tensor([[1.0]]), Tensor([[2.0]])),
    )
    named, listed, pair = resize_inputs(inputs, 0, 3)
    assert named["ids"].shape == (3, 4)
    assert named["flag"] is True
    assert listed[0].shape == (3, 2)
    assert pair.right.shape == (3, 1)


def test_inputs_given_by_name_change_too():
    workload = Workload(
        "named", print, (np.ones((2, 8)),), keywords={"mask": np.ones((2, 8)), "scale": 2.0}
    )
    resized = resize_workload(workload, 1, 16)
    assert resized.inputs[0].shape == (2, 16)
    assert resized.keywords["mask"].shape == (2, 16)
    assert resized.keywords["scale"] == 2.0
    assert workload.keywords["mask"].shape == (2, 8)


def test_a_workload_may_have_all_of_its_inputs_by_name():
    resized = resize_workload(Workload("named", print, (), keywords={"x": np.ones((2, 8))}), 0, 5)
    assert resized.inputs == ()
    assert resized.keywords["x"].shape == (5, 8)


def test_the_inputs_given_are_left_alone():
    x = Tensor(np.ones((1, 2)))
    resize_inputs((x,), 0, 9)
    assert x.shape == (1, 2)


def test_the_length_is_that_of_the_first_input_with_the_axis():
    assert axis_length((np.ones(3), np.ones((2, 7))), 1) == 7


def test_an_axis_that_nobody_has_is_refused():
    with pytest.raises(SettingError, match=r"no input has an axis 2.*the inputs are \(1, 4\)"):
        axis_length((np.ones((1, 4)),), 2)


def test_inputs_without_tensors_are_refused():
    with pytest.raises(SettingError, match="no tensor at all"):
        axis_length((3, "x"), 0)


@pytest.mark.parametrize(("axis", "number"), [("batch", 0), ("sequence", 1), (2, 2)])
def test_axes_have_names_and_numbers(axis, number):
    assert axis_number(axis) == number


@pytest.mark.parametrize("axis", ["width", -1])
def test_an_unknown_axis_is_refused(axis):
    with pytest.raises(SettingError, match=rf"axis '?{axis}'?; it"):
        axis_number(axis)
