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
    defined = {
        name
        for name, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, BaseException)
    }
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


@pytest.mark.parametrize("kind", [errors.Note, errors.Failure])
def test_notes_are_told_apart_by_code_and_subject_and_read_as_their_words(kind):
    one = kind("ran in training mode", code="training-mode", subject="baseline")
    assert str(one) == "ran in training mode"
    assert one == kind("ran in training mode", "training-mode", "baseline")
    assert one != kind("ran in training mode", "training-mode", "candidate")
