"""Where the output of a command goes: results to stdout, messages and progress to stderr."""

import dataclasses
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import EnumMeta, IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from tinytorch import __version__
from tinytorch.codec import encode
from tinytorch.core.files import PATIENCE_S as BAR_APPEARS_AFTER_S
from tinytorch.core.files import REDRAW_S as BAR_REDRAWS_EVERY_S
from tinytorch.errors import (
    BackendError,
    MissingPartError,
    SettingError,
    TargetError,
    TinyTorchError,
)
from tinytorch.reading import as_plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress

    from tinytorch.reporting.document import Document


class Progress(Protocol):
    """Progress of a command: steps done, and a description of the current one."""

    def advance(self, steps: int = 1) -> None: ...

    def describe(self, text: str) -> None: ...


class SilentProgress:
    """Progress that is not displayed."""

    def advance(self, steps: int = 1) -> None: ...

    def describe(self, text: str) -> None: ...


class BarProgress:
    """A progress bar on stderr that appears after BAR_APPEARS_AFTER_S seconds.

    It is drawn only inside ``advance`` and ``describe``, never by a thread of its own: what runs
    between the two is often being timed, and a thread would disturb it.
    """

    def __init__(
        self, description: str, total: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._clock = clock
        self._started = clock()
        self._draw_at = self._started + BAR_APPEARS_AFTER_S
        self._bar: RichProgress | None = None

    def advance(self, steps: int = 1) -> None:
        """Count finished steps, and redraw the bar if due."""
        self._done += steps
        self._draw_when_due()

    def describe(self, text: str) -> None:
        """Change the text in front of the bar."""
        self._description = as_plain(text)
        self._draw_when_due()

    def close(self) -> None:
        """Remove the bar and restore the cursor."""
        if self._bar is not None:
            self._bar.stop()

    def _draw_when_due(self) -> None:
        if self._clock() < self._draw_at:
            return
        self._draw_at = self._clock() + BAR_REDRAWS_EVERY_S
        if self._bar is None:
            self._bar = _make_bar(self._total, self._started, self._clock)
        (task,) = self._bar.task_ids
        self._bar.update(task, description=self._description, completed=self._done)
        self._bar.start()  # Only the first time; after that it does nothing.
        self._bar.refresh()


@dataclass(frozen=True)
class Output:
    """The output of one command, by its common options."""

    command: str
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    faults: list[str] = dataclasses.field(default_factory=list, compare=False)

    def result(self, payload: Mapping[str, object], renderable: "RenderableType") -> None:
        """Print the result on stdout: the payload as JSON, or the renderable for people.

        JSON has no NaN and no infinity; they become null. A string is printed as it is, without
        wrapping. Square brackets are text: layers have names such as ``blocks[0]``. A failed write
        is reported and added to `faults`, so that files are still written.
        """
        if not self.as_json:
            self._print(lambda: _as_text(renderable))
            return
        heading = {"command": self.command, "version": __version__}
        assert not heading.keys() & payload.keys(), "these two names belong to every result"
        ready = encode({**heading, **payload})
        self._print(lambda: json.dumps(ready, indent=2, allow_nan=False) + "\n")

    def show(
        self, payload: Mapping[str, object], document: "Document", *, more: str = "--verbose"
    ) -> None:
        """Print a document as :meth:`result` does: in brief, or all of it with ``--verbose``.

        `more` says how to see the rest.
        """
        from tinytorch.reporting.terminal import render

        self.result(payload, render(document, is_brief=not self.verbose, more=[("more", more)]))

    def _print(self, make: Callable[[], str]) -> None:
        try:
            sys.stdout.write(make())  # making it may flush what was written before
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self.faults.append(f"the result could not be printed: {error.strerror or error}")
            self.say(self.faults[-1])
            throw_away_output()

    def say(self, text: str) -> None:
        """Print a message on stderr, unless quiet."""
        if not self.quiet:
            sys.stderr.write(as_plain(text) + "\n")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a line on a terminal during a block that reports no progress; it disappears."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        line = as_plain(text)[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(line)
        sys.stderr.flush()
        try:
            yield
        finally:
            sys.stderr.write(f"\r{' ' * len(line)}\r")
            sys.stderr.flush()

    @contextmanager
    def progress(self, description: str, total: int | None = None) -> Iterator[Progress]:
        """Show a progress bar during the block, if it is long and stderr is a terminal.

        Without a total the bar is indeterminate. Only one can be active at a time.
        """
        if self.quiet or not sys.stderr.isatty():
            yield SilentProgress()
            return
        bar = BarProgress(description, total)
        try:
            yield bar
        finally:
            bar.close()


def throw_away_output() -> None:
    """Redirect stdout to the null device: flushing at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _console(*, stderr: bool) -> "Console":
    # Imported here, so that only those who print with it wait for it. It honours NO_COLOR and
    # the terminal's width by itself.
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _as_text(renderable: "RenderableType") -> str:
    if isinstance(renderable, str):
        return as_plain(renderable) + "\n"
    # Captured instead of printed: when the reader of a pipe leaves, rich would end the program
    # by itself with 1, which means a regression.
    from tinytorch.reporting.terminal import Cleaned

    console = _console(stderr=False)
    with console.capture() as captured:
        console.print(Cleaned(renderable))
    return captured.get()


def _make_bar(total: int | None, started: float, clock: Callable[[], float]) -> "RichProgress":
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=_console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,  # Otherwise a result would end up on stderr.
        transient=True,
        get_time=clock,
    )
    task = bar.add_task("", total=total)
    bar.tasks[task].start_time = started  # The time before the bar appeared counts too.
    return bar


# ---------------------------------------------------------------- exit codes


class _FormerNames(EnumMeta):
    """Lets a member be found by the name that it had in the release before."""

    def __getattr__(cls, name: str) -> Any:
        if name != "NOT_SHOWN":
            raise AttributeError(name)
        warnings.warn(
            "ExitCode.NOT_SHOWN is called ExitCode.INCONCLUSIVE", DeprecationWarning, stacklevel=2
        )
        return cls["INCONCLUSIVE"]


class ExitCode(IntEnum, metaclass=_FormerNames):
    """The exit codes of all commands."""

    FINE = 0
    FAILED = 1
    """A regression, or a check that did not hold."""
    USAGE = 2
    """Wrong usage: an unknown command, option, target or setting, or a part not installed."""
    INCONCLUSIVE = 3
    """Not enough evidence for a verdict; never to be read as passed."""
    INVALID = 4
    """No valid measurement: a model raised or did not return, the clock was set back; or records
    cannot be read or stored."""
    ACCURACY = 5
    """The accuracy limit was violated."""
    CRASHED = 70
    """An unexpected exception. Python's own 1 would read as a regression."""
    INTERRUPTED = 130
    """Ctrl-C: 128 and the signal's number, as in the shell."""
    PIPE_CLOSED = 141
    """The reader of our output left early, as in ``tinytorch tour | head``."""


CODE_IF = {True: ExitCode.FINE, False: ExitCode.FAILED, None: ExitCode.INCONCLUSIVE}
"""Whether something holds -> the exit code."""

# The first row that fits decides. None is FAILED: an error must not read as a regression.
CODE_OF_ERROR: dict[type[TinyTorchError], ExitCode] = {
    SettingError: ExitCode.USAGE,
    TargetError: ExitCode.USAGE,
    BackendError: ExitCode.USAGE,
    MissingPartError: ExitCode.USAGE,
    TinyTorchError: ExitCode.INVALID,
}


def exit_code_for(error: TinyTorchError) -> ExitCode:
    return next(code for kind, code in CODE_OF_ERROR.items() if isinstance(error, kind))
