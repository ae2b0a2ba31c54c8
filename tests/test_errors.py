import inspect

import pytest

from tinytorch import errors
from tinytorch.errors import TinyTorchError

# Error -> the built-in that a Python reader would catch.
EXPECTED_BUILT_IN = {
    "ShapeError": ValueError,
    "DTypeError": TypeError,
    "SettingError": ValueError,
    "GraphError": RuntimeError,
    "DivergenceError": ArithmeticError,
    "TokenError": ValueError,
    "CacheFullError": ValueError,
    "CheckpointError": ValueError,
    "BackendError": ValueError,
    "TargetError": ValueError,
    "MissingPartError": ImportError,
    "MeasurementError": RuntimeError,
    "ModelError": RuntimeError,
    "RecordError": RuntimeError,
}


def test_the_table_names_every_error():
    defined = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert defined - {"TinyTorchError"} == set(EXPECTED_BUILT_IN)


@pytest.mark.parametrize(("name", "built_in"), EXPECTED_BUILT_IN.items())
def test_every_error_is_ours_and_a_built_in(name, built_in):
    kind = getattr(errors, name)
    assert issubclass(kind, TinyTorchError)
    assert issubclass(kind, built_in)


@pytest.mark.parametrize("name", EXPECTED_BUILT_IN)
def test_an_error_keeps_its_message(name):
    assert str(getattr(errors, name)("seen this; do that")) == "seen this; do that"


def test_a_bad_token_is_also_an_index_error():
    assert issubclass(errors.TokenError, IndexError)
