import pytest

from tinytorch.core.layers import Linear
from tinytorch.errors import SettingError, ShapeError, short_text
from tinytorch.profiling.flops import check_model, checked_shapes
from tinytorch.profiling.timer import check_count


@pytest.mark.parametrize("value", [0, -3, 1.5, True, "7", None])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(SettingError, match="runs="):
        check_count("runs", value, at_least=1)


def test_counts_are_whole_numbers():
    assert check_count("runs", 7, at_least=1) == 7
    assert check_count("warmup", 0, at_least=0) == 0


@pytest.mark.parametrize("shape", [(), (0, 3), (2, -1), (2.5,), "123", 7, None, (True,)])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(SettingError, match="input_shape"):
        checked_shapes(shape)


def test_a_shape_is_a_tuple_of_lengths():
    assert checked_shapes([1, 28, 28]) == ((1, 28, 28),)


@pytest.mark.parametrize("thing", [5, None, "mlp", Linear])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(SettingError, match="no model"):
        check_model(thing)


def test_a_model_that_returns_before_its_work_is_refused():
    def lazily(x):
        yield x

    with pytest.raises(SettingError, match="generator"):
        check_model(lazily)


def test_failures_say_what_happened_in_a_line():
    assert short_text(KeyError("a")) == "KeyError: 'a'"
    assert short_text(RuntimeError()) == "RuntimeError"
    assert short_text(ShapeError("3 is not 4")) == "3 is not 4"
