import inspect

import pytest

from tinytorch import errors
from tinytorch.cli.console import CODE_OF_ERROR, ExitCode, exit_code_for
from tinytorch.errors import TinyTorchError

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, TinyTorchError)
]


def test_the_former_name_of_inconclusive_warns():
    with pytest.warns(DeprecationWarning, match="INCONCLUSIVE"):
        assert ExitCode.NOT_SHOWN is ExitCode.INCONCLUSIVE
    with pytest.raises(AttributeError):
        ExitCode.NEVER_THERE  # noqa: B018


def test_the_numbers_are_a_promise():
    assert {code.name: code.value for code in ExitCode} == {
        "FINE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "INCONCLUSIVE": 3,
        "INVALID": 4,
        "ACCURACY": 5,
        "CRASHED": 70,
        "INTERRUPTED": 130,
        "PIPE_CLOSED": 141,
    }


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.SettingError, ExitCode.USAGE),
        (errors.TargetError, ExitCode.USAGE),
        (errors.BackendError, ExitCode.USAGE),
        (errors.MissingPartError, ExitCode.USAGE),
        (errors.MeasurementError, ExitCode.INVALID),
        (errors.RecordError, ExitCode.INVALID),
        (errors.ModelError, ExitCode.INVALID),
        (errors.ShapeError, ExitCode.INVALID),
        (errors.CheckpointError, ExitCode.INVALID),
        (TinyTorchError, ExitCode.INVALID),
    ],
)
def test_an_error_leaves_its_code(kind, code):
    assert exit_code_for(kind("message")) is code


@pytest.mark.parametrize("kind", ERRORS)
def test_no_error_looks_like_success_or_like_a_regression(kind):
    assert exit_code_for(kind("message")) in (ExitCode.USAGE, ExitCode.INVALID)


def test_the_general_row_comes_last():
    assert list(CODE_OF_ERROR)[-1] is TinyTorchError
