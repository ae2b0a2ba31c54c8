import contextlib
import copy

import numpy as np
import pytest
from oracles import BACKENDS

import tinytorch
from tinytorch.core import operations as activations
from tinytorch.core import operations as convolution
from tinytorch.core import operations as elementwise
from tinytorch.core import operations as normalization
from tinytorch.core import operations as products
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.operations import Operation
from tinytorch.core.tensor import Parameter, Tensor, apply, concatenate, stack, where
from tinytorch.errors import DTypeError, ShapeError, TinyTorchError

# ---------------------------------------------------------------- what a tensor is made of


@pytest.mark.parametrize(
    "values",
    [1, 2.5, [1, 2], [1.5, 2], [[1, 2], [3, 4]], (1, 2), [], [[]], [np.float64(1), 2]],
    ids=str,
)
def test_lists_and_numbers_become_float32(values):
    tensor = Tensor(values)
    assert tensor.dtype == np.float32
    assert tensor.data.tolist() == np.array(values, np.float32).tolist()


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, bool]
)
def test_arrays_keep_their_dtype(dtype):
    assert Tensor(np.zeros((2, 3), dtype)).dtype == dtype
    assert Tensor(np.dtype(dtype).type(1)).dtype == dtype


@pytest.mark.parametrize("values", [True, [True, False]])
def test_truth_values_stay_truth_values(values):
    assert Tensor(values).dtype == bool


def test_a_tensor_shares_the_memory_of_its_array():
    array = np.zeros(3)
    tensor = Tensor(array)
    array[0] = 7
    assert tensor.data is array
    assert tensor.numpy() is array
    assert np.shares_memory(np.asarray(tensor), array)
    assert np.shares_memory(tensor.detach().data, array)
    assert np.shares_memory(Tensor(tensor).data, array)


def test_a_list_of_tensors_becomes_one_tensor():
    tensor = Tensor([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])])
    assert tensor.data.tolist() == [[1, 2], [3, 4]]
    assert tensor.dtype == np.float32


@pytest.mark.parametrize("values", [[[1, 2], [3]], [1, [2, 3]], [np.zeros(2), np.zeros(3)]])
def test_ragged_lists_are_refused(values):
    with pytest.raises(ShapeError, match="ragged list"):
        Tensor(values)


@pytest.mark.parametrize(
    ("values", "seen"),
    [("text", "str"), (["a", "b"], "list"), (None, "NoneType"), (1j, "complex"), ({}, "dict")],
)
def test_what_is_not_a_number_is_refused(values, seen):
    with pytest.raises(DTypeError, match=f"holds numbers, got {seen}"):
        Tensor(values)


def test_data_can_be_assigned():
    tensor = Tensor([1.0, 2.0], requires_grad=True)
    tensor.data = np.array([[5.0, 6.0]], np.float32)
    (tensor * 2).sum().backward()
    assert tensor.shape == (1, 2)
    assert tensor.grad.tolist() == [[2, 2]]


def test_a_scalar_becomes_a_float():
    total = Tensor([1.0, 2.0]).sum()
    assert float(total.data) == 3
    assert float(total) == 3
    assert total.item() == 3


def test_facts_come_from_the_array():
    tensor = Tensor(np.zeros((2, 3, 4), np.int8))
    assert (tensor.shape, tensor.ndim, tensor.size, len(tensor)) == ((2, 3, 4), 3, 24, 2)
    assert tensor.T.shape == (2, 4, 3)


def test_the_package_exports_tensor():
    assert tinytorch.Tensor is Tensor


# ---------------------------------------------------------------- arithmetic and its dtypes

ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("number", [2, 0.1, True])
@pytest.mark.parametrize("sign", ARITHMETIC)
def test_a_plain_number_keeps_the_dtype(sign, number, dtype):
    array = np.array([1.0, 2.0, 3.0], dtype)
    compute = ARITHMETIC[sign]
    for result, expected in [
        (compute(Tensor(array), number), compute(array, number)),
        (compute(number, Tensor(array)), compute(number, array)),
    ]:
        assert result.dtype == dtype
        # the same operation of NumPy, but perhaps through another routine: one rounding
        np.testing.assert_allclose(result.data, expected, rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("sign", ARITHMETIC)
@pytest.mark.parametrize("other", [np.array([4.0, 5.0, 6.0]), np.float64(4), [4.0, 5.0, 6.0]])
def test_arrays_and_lists_on_either_side_give_a_tensor(sign, other):
    tensor, compute = Tensor(np.array([1.0, 2.0, 3.0])), ARITHMETIC[sign]
    for result, expected in [
        (compute(tensor, other), compute(tensor.data, np.asarray(other))),
        (compute(other, tensor), compute(np.asarray(other), tensor.data)),
    ]:
        assert isinstance(result, Tensor)
        np.testing.assert_array_equal(result.data, expected)


def test_an_array_times_a_matrix_is_a_tensor():
    left, right = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for result in (left @ Tensor(right), Tensor(left) @ right, Tensor(left).matmul(right)):
        assert isinstance(result, Tensor)
        assert result.data.tolist() == (left @ right).tolist()


def test_gradients_flow_through_reflected_operators():
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    (np.array([3.0, 4.0]) * x - x / 2 + 1 / x + 2**x).sum().backward()
    expected = np.array([3, 4]) - 0.5 - 1 / x.data**2 + np.log(2) * 2**x.data
    np.testing.assert_allclose(x.grad, expected, rtol=1e-15)


def test_mixed_floats_become_float64():
    assert (Tensor(np.ones(2, np.float32)) + Tensor(np.ones(2))).dtype == np.float64


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_operation_changes_the_dtype(dtype, backend):
    x = Tensor(np.linspace(0.1, 0.9, 2 * 3 * 4 * 4, dtype=dtype).reshape(2, 3, 4, 4))
    per_channel = Tensor(np.ones(3, dtype))
    width = Tensor(np.ones(4, dtype))
    pair = (2, 2)
    with use_backend(backend):
        results = [
            *(apply(kind(), x) for kind in (activations.ReLU, activations.Sigmoid)),
            *(apply(activations.GELU(form), x) for form in ("tanh", "none")),
            *(kind for kind in (x.exp(), x.log(), x.sqrt(), abs(x), -x, x**3, x**0.5, x**-1)),
            *(x.sum(), x.mean(), x.max(), x.var(), x.sum(0), x.mean((1, 2)), x.var(-1)),
            apply(activations.Softmax(-1), x),
            apply(normalization.LayerNorm(1e-5), x, width, width),
            apply(normalization.BatchNorm(1e-5), x, per_channel, per_channel),
            apply(products.Attention(None, 0.5, True), x, x, x),
            apply(convolution.AvgPool2d(pair, pair, (0, 0)), x),
            apply(convolution.MaxPool2d(pair, pair, (1, 1)), x),
            where(x.data > 0.5, x, 0),
            concatenate([x, x]),
            stack([x, x]),
        ]
    assert {result.dtype for result in results} == {np.dtype(dtype)}


def test_astype_gives_a_copy_without_a_graph():
    x = Tensor([1.0, 2.0], requires_grad=True)
    double = x.astype(np.float64)
    assert double.dtype == np.float64
    assert not double.requires_grad
    assert not np.shares_memory(x.astype(np.float32).data, x.data)


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize("shape", [(3, 2), (-1, 2), (6,), (-1,), (1, 6)])
def test_reshape_takes_numbers_a_tuple_or_a_list(shape):
    tensor = Tensor(np.arange(6.0))
    expected = tensor.data.reshape(shape)
    for reshaped in (tensor.reshape(*shape), tensor.reshape(shape), tensor.reshape(list(shape))):
        assert reshaped.data.tolist() == expected.tolist()


@pytest.mark.parametrize(("shape", "expected"), [((2, 3), (3, 2)), ((4, 2, 3), (4, 3, 2))])
def test_transpose_swaps_the_last_two_axes_by_default(shape, expected):
    assert Tensor(np.zeros(shape)).transpose().shape == expected


def test_iterating_gives_the_first_axis_and_keeps_the_graph():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    first, second = x
    (first * 2 + second * 3).sum().backward()
    assert x.grad.tolist() == [[2, 2], [3, 3]]


def test_a_scalar_has_no_length_and_no_elements():
    with pytest.raises(TypeError, match="no length"):
        len(Tensor(1.0))
    with pytest.raises(TypeError):
        iter(Tensor(1.0))


def test_item_needs_exactly_one_element():
    assert Tensor([[5.0]]).item() == 5
    with pytest.raises(ShapeError, match=r"one element, this tensor has shape \(2,\)"):
        Tensor([1.0, 2.0]).item()


@pytest.mark.parametrize("sign", ARITHMETIC)
def test_shapes_that_do_not_fit_are_named_both(sign):
    a, b = Tensor(np.ones((2, 3))), Tensor(np.ones((4, 5)), requires_grad=True)
    with pytest.raises(ShapeError, match=r"cannot use shapes \(2, 3\) and \(4, 5\)") as caught:
        ARITHMETIC[sign](a, b)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TinyTorchError)


def test_where_needs_shapes_that_fit():
    with pytest.raises(ShapeError, match=r"Where cannot use shapes \(2,\) and \(3,\)"):
        where(True, Tensor([1.0, 2.0]), Tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("mode", [contextlib.nullcontext, no_grad])
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("stranger", [np.ones((2, 2), np.float32), [[1.0]], 2.0, None], ids=type)
def test_anything_but_a_tensor_gives_advice(stranger, requires_grad, position, mode):
    tensor = Tensor(np.ones((2, 2), np.float32), requires_grad)
    inputs = [tensor, tensor]
    inputs[position] = stranger
    name = type(stranger).__name__
    with mode(), pytest.raises(DTypeError, match=rf"got {name}; wrap it in Tensor\(\.\.\.\)"):
        apply(elementwise.Add(), *inputs)


@pytest.mark.parametrize("other", ["text", None, {}])
def test_operators_refuse_what_is_not_a_number(other):
    with pytest.raises(DTypeError, match="a tensor holds numbers"):
        Tensor([1.0]) + other


# ---------------------------------------------------------------- copies and display


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        (Tensor([1.0, 2.0]), "Tensor([1., 2.])"),
        (Tensor(1.5), "Tensor(1.5)"),
        (Tensor(np.array([1, 2])), "Tensor([1, 2], dtype=int64)"),
        (
            Tensor(np.array([1.0]), requires_grad=True),
            "Tensor([1.], dtype=float64, requires_grad=True)",
        ),
        (Tensor([[1, 2], [3, 4]]), "Tensor([[1., 2.],\n        [3., 4.]])"),
    ],
)
def test_repr_shows_values_and_what_is_unusual(tensor, shown):
    assert repr(tensor) == shown


def test_a_deep_copy_shares_nothing():
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    twin = copy.deepcopy(x)
    twin.data *= 10
    twin.grad *= 10
    assert x.data.tolist() == [1, 2]
    assert x.grad.tolist() == [2, 4]
    assert twin.requires_grad


def test_a_deep_copy_of_a_computed_tensor_is_a_leaf():
    twin = copy.deepcopy(Tensor([1.0], requires_grad=True) * 2)
    assert twin.creator is None
    assert twin.data.tolist() == [2]


def test_a_deep_copy_keeps_sharing_among_the_copied():
    x = Tensor([1.0])
    first, second = copy.deepcopy([x, x])
    assert first is second
    assert first is not x


def test_a_parameter_is_a_tensor_that_learns_and_stays_one_in_copies():
    parameter = Parameter([1.0, 2.0])
    assert parameter.requires_grad
    assert isinstance(copy.deepcopy(parameter), Parameter)
    frozen = Parameter([1.0], requires_grad=False)
    assert not copy.deepcopy(frozen).requires_grad
    assert type(parameter * 2) is Tensor


def test_where_accepts_numbers_arrays_and_tensors():
    condition = Tensor(np.array([True, False]))
    x = Tensor(np.array([1.0, 2.0], np.float32), requires_grad=True)
    assert where(condition, x, 0).data.tolist() == [1, 0]
    assert where(condition, 0, x).data.tolist() == [0, 2]
    assert where([1, 0], x, np.float32(7)).data.tolist() == [1, 7]
    assert where(condition, 1, 2).data.tolist() == [1, 2]
    assert where(condition, x, 0).dtype == np.float32


@pytest.mark.parametrize("number", [np.float64(2), np.float32(2), np.int64(2), np.sqrt(4.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_numpy_number_follows_the_dtype_of_the_tensor(number, dtype):
    x = Tensor(np.ones(3, dtype))
    for result in (x * number, number * x, x + number, number / x):
        assert result.dtype == dtype


@pytest.mark.parametrize("name", ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"])
def test_comparisons_are_those_of_numpy_and_have_no_graph(name):
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([2.0, 2.0])
    result = getattr(Tensor(a, requires_grad=True), name)(Tensor(b))
    np.testing.assert_array_equal(result.data, getattr(a, name)(b))
    assert result.dtype == bool
    assert not result.requires_grad


def test_comparing_with_something_else_is_no_tensor():
    assert (Tensor([1.0]) == None) is False  # noqa: E711
    with pytest.raises(TypeError, match="not supported"):
        Tensor([1.0]) < None  # noqa: B015


def test_a_tensor_is_itself_in_a_dictionary():
    first, second = Tensor([1.0]), Tensor([1.0])
    assert {first: 1, second: 2}[first] == 1


def test_only_a_single_element_is_true_or_false():
    assert not Tensor([0.0])
    assert Tensor([2.0])
    with pytest.raises(ShapeError, match="needs one element"):
        bool(Tensor([1.0, 2.0]))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([object()])])
def test_an_array_of_something_else_than_numbers_is_an_error(array):
    with pytest.raises(DTypeError, match="a tensor holds numbers, got an array of"):
        Tensor(array)


def test_a_mistake_inside_an_operation_is_not_blamed_on_the_shapes():
    class Broken(Operation):
        def forward(self, x):
            return self.no_such_attribute

    with pytest.raises(AttributeError, match="no_such_attribute"):
        apply(Broken(), Tensor([1.0]))
