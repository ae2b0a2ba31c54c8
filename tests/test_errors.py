import inspect
import math

import numpy as np
import pytest

from tinytorch import errors
from tinytorch.errors import SettingError, TinyTorchError, check_number

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


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (1, {}),
        (np.float32(0.5), {"above": 0, "below": 1}),
        (0, {"least": 0, "most": 0}),
        (-3.5, {"below": 0}),
    ],
)
def test_a_number_within_its_limits_is_fine(value, limits):
    check_number("x", value, **limits)


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (0, {"above": 0}, "x=0; it must be a number above 0$"),
        (1, {"above": 0, "below": 1}, "above 0, below 1"),
        (-1, {"least": 0}, "at least 0"),
        (2, {"most": 1}, "at most 1"),
        (math.nan, {"least": 0}, "x=nan"),
        (math.inf, {"above": 0}, "x=inf"),
        (-math.inf, {}, "x=-inf; it must be a number$"),
        (True, {}, "x=True"),
        ("1", {}, "x='1'"),
        (None, {"least": 0}, "x=None"),
    ],
)
def test_what_is_no_number_within_its_limits_is_named(value, limits, message):
    with pytest.raises(SettingError, match=message):
        check_number("x", value, **limits)
