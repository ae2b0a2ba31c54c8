"""Where the output of a command goes: results to stdout, messages and progress to stderr."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

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

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Steps of work that somebody may be watching."""

    def advance(self, steps: int = 1) -> None:
        """Count finished steps."""

    def describe(self, text: str) -> None:
        """Say what is being done now."""


class SilentProgress:
    """Progress that nobody watches."""

    def advance(self, steps: int = 1) -> None:
        """Count nothing."""

    def describe(self, text: str) -> None:
        """Say nothing."""


class BarProgress:
    """A bar on stderr that appears when the work turns out to be long.

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
        """Count finished steps and redraw the bar when it is due."""
        self._done += steps
        self._draw_when_due()

    def describe(self, text: str) -> None:
        """Change the words in front of the bar."""
        self._description = text
        self._draw_when_due()

    def close(self) -> None:
        """Take the bar away and give the cursor back."""
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
    """The output of one command, as its common options ask for it."""

    command: str
    as_json: bool = False
    quiet: bool = False
    faults: list[str] = dataclasses.field(default_factory=list, compare=False)

    def result(self, payload: Mapping[str, object], renderable: "RenderableType") -> None:
        """Print the result on stdout: the payload as JSON, or the renderable for people.

        JSON has no NaN and no infinity; they become null. A string is printed as it is, without
        wrapping. Square brackets are text: layers have names such as ``blocks[0]``. That stdout has
        no room is said, and goes into `faults`: files are still to be written.
        """
        if not self.as_json:
            self._print(lambda: _as_text(renderable))
            return
        heading = {"command": self.command, "version": __version__}
        assert not heading.keys() & payload.keys(), "these two names belong to every result"
        ready = encode({**heading, **payload})
        self._print(lambda: json.dumps(ready, indent=2, allow_nan=False) + "\n")

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
            sys.stderr.write(text + "\n")

    @contextmanager
    def progress(self, description: str, total: int | None = None) -> Iterator[Progress]:
        """Show a bar while the block runs, if it is long and somebody sits at the terminal.

        Without a total the bar only shows that there is life. One at a time, please.
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
    """Send stdout nowhere: what is buffered would fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _console(*, stderr: bool) -> "Console":
    # Imported here, so that only those who print with it wait for it. It honours NO_COLOR and
    # the terminal's width by itself.
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _as_text(renderable: "RenderableType") -> str:
    if isinstance(renderable, str):
        return renderable + "\n"
    # Captured instead of printed: when the reader of a pipe leaves, rich would end the program
    # by itself with 1, which means a regression.
    console = _console(stderr=False)
    with console.capture() as captured:
        console.print(renderable)
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


# ---------------------------------------------------------------- what the number means that a
# command leaves behind


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
