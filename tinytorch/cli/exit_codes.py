"""What the number means that a command leaves behind."""

from enum import IntEnum

from tinytorch.errors import (
    BackendError,
    MissingPartError,
    SettingError,
    TargetError,
    TinyTorchError,
)


class ExitCode(IntEnum):
    """The verdict of a command, as the shell and a CI job see it."""

    FINE = 0
    FAILED = 1
    """A regression, or a check that did not hold."""
    USAGE = 2
    """Wrong usage: an unknown command, option, target or setting, or a part not installed."""
    NOT_SHOWN = 3
    """Not enough evidence for a verdict; never to be read as passed."""
    INVALID = 4
    """There is no measurement that can be trusted: a model raised or did not return, the clock was
    set back; or records cannot be read or kept."""
    ACCURACY = 5
    """The accuracy limit was violated."""
    CRASHED = 70
    """An unexpected exception. Python's own 1 would read as a regression."""
    INTERRUPTED = 130
    """Ctrl-C: 128 and the signal's number, as in the shell."""
    PIPE_CLOSED = 141
    """The reader of our output left early, as in ``tinytorch tour | head``."""


# The first row that fits decides. None is FAILED: an error must not read as a regression.
CODE_OF_ERROR: dict[type[TinyTorchError], ExitCode] = {
    SettingError: ExitCode.USAGE,
    TargetError: ExitCode.USAGE,
    BackendError: ExitCode.USAGE,
    MissingPartError: ExitCode.USAGE,
    TinyTorchError: ExitCode.INVALID,
}


def exit_code_for(error: TinyTorchError) -> ExitCode:
    """Give the exit code that an error leaves behind."""
    return next(code for kind, code in CODE_OF_ERROR.items() if isinstance(error, kind))
