from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import check_every_operation_has_a_case, operations_behind

from tinytorch.core import operations
from tinytorch.core.operations import Operation, sum_to_shape
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import GraphError


class Double(Operation):
    def forward(self, x):
        self.saved = x
        return 2 * x

    def backward(self, grad):
        return (2 * grad,)


def test_every_operation_has_a_case():
    files = set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)}
    cases = [case for file in sorted(files) for case in run_path(str(file))["CASES"]]
    check_every_operation_has_a_case(operations, cases)


def test_an_operation_of_ones_own_needs_only_its_two_directions():
    x = Tensor([1.0, 2.0], requires_grad=True)
    doubled = apply(Double(), x)
    doubled.sum().backward()
    assert doubled.data.tolist() == [2, 4]
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_an_operation_without_a_direction_says_so(direction):
    with pytest.raises(NotImplementedError):
        getattr(Operation(), direction)(np.ones(2))


def test_an_operation_wants_gradients_only_for_inputs_that_need_them():
    operation = Double()
    operation.inputs = (Tensor([1.0]), Tensor([1.0], requires_grad=True))
    assert [operation.wants(position) for position in range(3)] == [False, True, False]


def test_a_freed_operation_holds_nothing_and_says_what_to_do():
    x = Tensor([1.0], requires_grad=True)
    operation = apply(Double(), x).creator
    operation.check_not_freed()
    operation.free()
    assert (operation.inputs, operation.saved) == ((), None)
    with pytest.raises(GraphError, match=r"Double was freed.*retain_graph=True"):
        operation.check_not_freed()


def test_operations_know_whether_somebody_will_ask_for_their_derivative():
    followed, ignored = Double(), Double()
    apply(followed, Tensor([1.0], requires_grad=True))
    apply(ignored, Tensor([1.0]))
    assert followed.tracked
    assert not ignored.tracked


def test_the_graph_is_the_operations_and_their_inputs():
    x = Tensor([1.0], requires_grad=True)
    names = [type(operation).__name__ for operation in operations_behind((x * x + x).sum())]
    assert sorted(names) == ["Add", "Multiply", "Sum"]


@given(st.lists(st.booleans(), min_size=3, max_size=3), st.integers(0, 3))
def test_sum_to_shape_undoes_broadcasting(is_repeated, missing):
    full = (2, 3, 4)
    shape = tuple(1 if one else n for one, n in zip(is_repeated, full, strict=True))[missing:]
    total = sum_to_shape(np.ones(full), shape)
    assert total.shape == shape
    # Each element was repeated as often as the array became larger.
    assert (total == np.prod(full) // np.prod(shape, dtype=int)).all()


def test_sum_to_the_same_shape_is_the_array_itself():
    array = np.ones((2, 3))
    assert sum_to_shape(array, (2, 3)) is array


def test_a_sum_over_nothing_is_zero():
    assert sum_to_shape(np.ones((0, 3)), (1, 3)).tolist() == [[0, 0, 0]]
