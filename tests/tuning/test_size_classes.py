import inspect

import numpy as np
import pytest
from kernel_calls import kernel_calls

from tinytorch.core.kernels import REFERENCE
from tinytorch.core.kernels.reference_quantized import Window
from tinytorch.transforms.kernel_choice import (
    DECIDING_SETTINGS,
    arrays_in,
    deciding_settings,
    signature,
    size_class,
)

F = "float32"


def test_elements_count_in_powers_of_two():
    one, other, larger = (size_class("add", [(n, 8)], [F], {}) for n in (65, 127, 128))
    assert one == other != larger
    assert one == "float32 2d of 2^9 in rows of 2^3"


def test_every_array_counts():
    x, weight = (4, 8), (8, 16)
    classes = {
        size_class("matmul", [x, weight], [F, F], {}),
        size_class("matmul", [x, (8, 32)], [F, F], {}),
        size_class("matmul", [(8, 8), weight], [F, F], {}),
        size_class("matmul", [x], [F], {}),
    }
    assert len(classes) == 4
    assert size_class("matmul", [x, weight], [F], {}) == "float32 2d,2d of 2^5,2^7 in rows of 2^3"


def test_rows_dtypes_and_axes_make_classes():
    classes = {
        size_class("add", [(64, 64)], [F], {}),
        size_class("add", [(64, 64)], ["float64"], {}),
        size_class("add", [(2, 32, 64)], [F], {}),
        size_class("add", [(1024, 4)], [F], {}),
    }
    assert len(classes) == 4


def test_settings_count_only_where_they_decide_about_speed():
    assert "axis=0" in size_class("softmax", [(4, 8)], [F], {"axis": 0})
    assert "lr" not in size_class("sgd_step", [(4, 8)], [F], {"lr": 0.1})


def test_numbers_and_empty_arrays_have_a_class():
    assert size_class("add", [(), ()], [F, F], {}) == "float32 0d,0d of 2^0,2^0 in rows of 2^0"
    assert size_class("add", [(0, 4)], [F], {}) == "float32 2d of 0 in rows of 2^2"
    assert size_class("add", [], [], {}) == "no arrays"


def test_every_row_of_the_table_is_an_operation():
    assert DECIDING_SETTINGS.keys() - REFERENCE.kernels.keys() == set()


@pytest.mark.parametrize("kind", kernel_calls(np.float32))
def test_every_call_has_a_class_and_a_signature(kind):
    for call in kernel_calls(np.float32)[kind]:
        arrays = arrays_in(call.arguments)
        shapes, dtypes = [each.shape for each in arrays], [str(each.dtype) for each in arrays]
        assert bool(arrays) is ("in rows of" in size_class(kind, shapes, dtypes, call.settings))
        key = signature(call.arguments, call.settings, deciding_settings(kind))
        assert key in {key}


def test_equal_calls_have_one_signature():
    def key(x, *others, **settings):
        return signature((x, *others), settings, deciding_settings("gelu"))

    x = np.ones((2, 3), np.float32)
    assert key(x, approximate="tanh") == key(x + 1, approximate="tanh", other=3)
    keys = {
        key(x, approximate="tanh"),
        key(x, approximate="none"),
        key(x.astype(np.float64), approximate="tanh"),
        key(x.T, approximate="tanh"),
        key(x, None, approximate="tanh"),
        key((x, x), approximate="tanh"),
    }
    assert len(keys) == 6


def test_arrays_are_found_in_tuples_and_nothing_else_is():
    x, number = np.ones(3), np.float32(2)
    assert [each is x for each in arrays_in((x, None, (x, x), 3, [number]))] == [True] * 3 + [False]


@pytest.mark.parametrize("kind", DECIDING_SETTINGS)
def test_every_setting_of_the_table_is_one_of_the_operation(kind):
    names = set(inspect.signature(REFERENCE.kernels[kind]).parameters)
    if "geometry" in names:  # the settings of a convolution's window, passed on
        names |= set(Window._fields)
    assert set(deciding_settings(kind)) <= names


def test_a_weight_that_is_no_argument_counts_too():
    images, grad = (2, 4, 8, 8), (2, 8, 8, 8)
    classes = {
        size_class("conv2d_backward_weight", [grad, images], [F], {"weight_shape": weight})
        for weight in ((8, 4, 3, 3), (8, 4, 5, 5))
    }
    assert len(classes) == 2


def test_the_group_size_of_four_bit_weights_makes_classes():
    shapes = [(4, 32), (256,), (1, 16)]
    classes = {
        size_class("int4_linear_weight_only", shapes, [F], {"group_size": size})
        for size in (32, 64)
    }
    assert len(classes) == 2


def test_the_window_of_a_packed_convolution_makes_classes():
    shapes, window = [(2, 4, 8, 8), (8 * 4 * 9,), (8,), (8,)], {"kernel_size": (3, 3), "groups": 1}
    assert "kernel_size=(3, 3)" in size_class("int8_conv2d_dynamic", shapes, [F], window)


class Named(np.ndarray):
    pass


@pytest.mark.parametrize("as_passed", [lambda x: x.view(Named), lambda x: (x,), lambda x: x[0, 0]])
def test_every_kind_of_array_counts_with_shape_and_dtype(as_passed):
    arrays = [np.ones((2, 3), np.float32), np.ones((2, 3), np.float64)]
    keys = {signature((as_passed(array),), {}, ()) for array in arrays}
    assert len(keys) == 2
    if as_passed(arrays[0]).__class__ is Named:
        larger = signature((np.ones((4, 3), np.float32).view(Named),), {}, ())
        assert larger not in keys
        assert signature((arrays[0],), {}, ()) in keys
