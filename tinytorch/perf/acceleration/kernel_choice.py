"""What was measured about the implementations of an operation, and which one was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.comparison.sequential import TimeRatio
from tinytorch.showing import Shown

__all__ = [
    "DEFAULT_WINS",
    "DEFAULT_WRONG",
    "FASTER",
    "NO_DIFFERENCE",
    "ONLY_ONE",
    "Choice",
    "KernelReport",
    "Rival",
]

FASTER = "faster"
DEFAULT_WINS = "the default is the fastest"
NO_DIFFERENCE = "no difference shown"
ONLY_ONE = "the only one that is right"
DEFAULT_WRONG = "the default cannot be used"


@dataclass(frozen=True)
class Rival:
    """An implementation that was not chosen.

    `ratio` is its time over that of the chosen one, above 1: the chosen one is faster. It is None,
    with the reason in `note`, where it was not timed: it raised or gave something else.
    """

    name: str
    ratio: TimeRatio | None
    note: str = ""


@dataclass(frozen=True)
class Choice:
    """The implementation of an operation for calls of one size class.

    `n` is the number of rounds in which all took turns, `seconds` the median time of one call. The
    verdict is `faster` (than the default), `the default is the fastest`, `no difference shown` (so
    the default stays), `the only one that is right`, or `the default cannot be used` (and this is
    the fastest of the others).
    """

    op: str
    size_class: str
    chosen: str
    default: str
    rivals: tuple[Rival, ...]
    n: int
    verdict: str
    seconds: float | None = None

    def against(self, name: str) -> TimeRatio | None:
        """Give the time of another implementation over that of the chosen one, if measured."""
        return next((each.ratio for each in self.rivals if each.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Choice:
        """Give back what :meth:`to_dict` wrote."""
        rivals = tuple(
            Rival(
                each["name"],
                None if each["ratio"] is None else TimeRatio(**each["ratio"]),
                each["note"],
            )
            for each in fields["rivals"]
        )
        return cls(**{**fields, "rivals": rivals})


@dataclass(frozen=True)
class KernelReport(Shown):
    """Which implementation won where, on this machine.

    `fingerprint` stands for the machine, the versions of its libraries and the number of threads.
    """

    rows: tuple[Choice, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return asdict(self)
