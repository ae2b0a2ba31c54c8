"""What takes part in a heat, and what the judge's process and the contender's say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy.typing as npt

from tinytorch.competition.entry import Technique
from tinytorch.competition.sandbox.bubblewrap import Protection
from tinytorch.errors import TinyTorchError

BACKEND = "numpy"
"""What both sides compute with, unless a model has its own backend."""

Kind = Literal["forward", "generate"]
"""`forward`: examples to outputs, (batch, ...) to (batch, ...). `generate`: a prompt (time,) of
characters to the `count` most likely next ones, (count,)."""


@dataclass(frozen=True)
class Contender:
    """How one side is built. Without techniques, weights and code it is the reference.

    `weights` and the file in `code` (``file.py:make``) are absolute paths.
    """

    event: str
    techniques: tuple[Technique, ...] = ()
    weights: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Limits:
    """What a contender may use. With `unconfined` nothing is sandboxed, not even code."""

    memory_bytes: int = 2 << 30
    start_s: float = 120.0
    answer_s: float = 60.0
    heat_s: float = 600.0
    processes: int = 1
    threads: int = 64
    files: int = 10_000
    unconfined: bool = False


USUAL_LIMITS = Limits()


class ContenderError(TinyTorchError, RuntimeError):
    """A contender that cannot go on; `rule` is the one that it breaks."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True)
class Answer:
    """What came back: the judge's clock around the request, the contender's around the call.

    `is_question_intact` is false when the question was changed while it was answered.
    """

    output: npt.NDArray[Any]
    round_trip_s: float
    inner_s: float
    is_question_intact: bool = True


@dataclass(frozen=True)
class Loading:
    """How long building took by the judge's clock, and what is known of the model since.

    `file_bytes` is what it takes on disk. `plans` are the plans that were carried out, ready for
    JSON. `notes` are worth keeping, such as a technique with an empty plan. `describing_s` is
    how long it took to report all that.
    """

    seconds: float
    file_bytes: int
    plans: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    describing_s: float = 0.0


@dataclass(frozen=True)
class Usage:
    """What the process has used since it was ready to load; read from outside of it."""

    cpu_s: float
    peak_bytes: int
    processes: int
    modules: tuple[str, ...] = field(default=())


class AskedContender(Protocol):
    """A contender that can be asked, from entering its block until the end of it."""

    @property
    def protection(self) -> Mapping[str, Protection]:
        """How it is isolated."""

    def __enter__(self) -> Self:
        """Start it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""

    def load(self) -> Loading:
        """Build its model."""

    def ask(self, kind: Kind, question: npt.NDArray[Any], *, count: int = 0) -> Answer:
        """Ask one question and wait for the answer."""

    def usage(self) -> Usage:
        """Return what it has used since it was ready to load."""

    def pause(self, seconds: float) -> float:
        """Ask nothing for a while; return the processor time that it used nevertheless."""

    def hold(self) -> None:
        """Stop it while it is the other side's turn."""

    def release(self) -> None:
        """Resume it."""
