"""What a judge has seen of an entry, for those who inspect it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.events import Event
from tinytorch.competition.judging.heats import Leg

__all__ = ["KEPT_GAIN", "TICK_S", "Seen"]

KEPT_GAIN = 0.8
"""Questions that were asked before and take less than this share of the time: answers are kept."""
TICK_S = 1e-9


@dataclass(frozen=True)
class Seen:
    """Everything that the judge has seen of an entry: pairs of legs, reference first.

    `floor_s` is the time below which no request can be answered on this machine, or 0 if there is
    no such bound in this division.
    """

    event: Event
    entry: Entry
    legs: Sequence[tuple[Leg, Leg]]
    accuracy: AccuracyComparison | None
    floor_s: float = 0.0

    @property
    def entries(self) -> list[Leg]:
        return [entry for _, entry in self.legs]
