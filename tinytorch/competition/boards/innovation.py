"""Innovation, measured: what a technique contributes at least, and how rare it is.

Each declared technique was switched off in turn. Its credit is the logarithm of the lower bound of
what the entry gains by it, weighted by how few others use it. All credits together are capped by
what the entry gains over the reference, so that neither splitting one technique into two nor a
part that is slow on purpose, and then left out, pays beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from functools import cache

from tinytorch.competition.boards.standings import Standing
from tinytorch.competition.entries.entry import Technique
from tinytorch.competition.judgement import Score
from tinytorch.tuning.catalog import CATALOG

__all__ = ["BONUS", "SPEED_SHARE", "Credit", "Innovation", "composite_of", "innovation_of"]

BONUS = 1.25
"""Factor for a technique that also helps the same team in another event."""
SPEED_SHARE = 0.7
"""The part of speed in the composite; the rest is innovation."""

Parts = frozenset[str]
"""What a technique consists of: the names of its transforms, or its own where it has none."""


@dataclass(frozen=True)
class Credit:
    """What one technique counts.

    `without_it` of the `others`, teams with a verified entry in the event, do not use it.
    """

    technique: str
    contribution: Score | None
    others: int
    without_it: int
    helps_elsewhere: bool

    @property
    def rarity(self) -> float:
        """Between 1 / (1 + others), where all use it, and 1, where nobody else does."""
        return (1 + self.without_it) / (1 + self.others)

    @property
    def value(self) -> float:
        """The logarithm of what is credited; 0 where no help is shown."""
        return self._weighted(self.contribution.low) if self.contribution else 0.0

    @property
    def high(self) -> float:
        """The same for the upper bound of what it contributes."""
        return self._weighted(self.contribution.high) if self.contribution else 0.0

    def _weighted(self, bound: float) -> float:
        return math.log(max(1.0, bound)) * self.rarity * self.bonus

    @property
    def bonus(self) -> float:
        """The factor for helping in a second event, or 1."""
        return BONUS if self.helps_elsewhere else 1.0


@dataclass(frozen=True)
class Innovation:
    """The credits of an entry, and what they come to beside its `speed`."""

    credits: tuple[Credit, ...]
    speed: Score

    @property
    def value(self) -> float:
        """How much faster its own techniques make it, weighted; 1 where nothing is shown."""
        return math.exp(min(self._sum, self._cap(self.speed.low)))

    @property
    def high(self) -> float:
        """What it might come to; two entries differ where this lies below the other's value."""
        total = math.fsum(each.high for each in self.credits)
        return math.exp(min(total, self._cap(self.speed.high)))

    @property
    def is_capped(self) -> bool:
        """Whether the credits come to more than the entry gains over the reference."""
        return self._sum > self._cap(self.speed.low)

    @property
    def uncapped(self) -> float:
        """What the credits come to by themselves."""
        return math.exp(self._sum)

    @property
    def as_score(self) -> Score:
        """The value, which is a lower bound itself, with its interval."""
        return Score(self.value, self.value, self.high, self.speed.n)

    @property
    def _sum(self) -> float:
        return math.fsum(each.value for each in self.credits)

    def _cap(self, bound: float) -> float:
        bonus = max((each.bonus for each in self.credits), default=1.0)
        return bonus * math.log(max(1.0, bound))


def innovation_of(standing: Standing, current: Sequence[Standing]) -> Innovation:
    """Give what the techniques of a standing count among all that are ranked now."""
    mine = standing.team
    others: dict[str, set[str]] = {}
    for each in current:
        if each.is_verified and each.contest.event == standing.contest.event and each.team != mine:
            parts = (_parts(technique) for technique in each.entry.techniques)
            others.setdefault(each.team, set()).update(*parts)
    elsewhere = {
        parts
        for each in current
        if each.team == mine
        and each.contest.event != standing.contest.event
        and each.is_verified == standing.is_verified
        for parts in _helping(each)
    }
    credits = tuple(
        Credit(
            technique.name,
            standing.contributions[technique.name],
            len(others),
            _teams_without(_parts(technique), others.values()),
            _parts(technique) in elsewhere,
        )
        for technique in standing.entry.techniques
    )
    return Innovation(credits, standing.score)


def composite_of(speed: Score, innovation: Innovation) -> Score:
    """Give 70% speed and 30% innovation, with what both may be at least and at most."""

    def mixed(part: float, new: float) -> float:
        return SPEED_SHARE * part + (1 - SPEED_SHARE) * new

    return Score(
        mixed(speed.value, innovation.value),
        mixed(speed.low, innovation.value),
        mixed(speed.high, innovation.high),
        speed.n,
    )


def _teams_without(parts: Parts, others: Collection[Set[str]]) -> int:
    """Count the teams that do without a technique: it is as rare as its most common part.

    Otherwise a common transform would be rare as soon as it is declared together with another.
    """
    return min(sum(each not in theirs for theirs in others) for each in parts)


def _helping(standing: Standing) -> set[Parts]:
    """Give the parts of each technique that is shown to help in a standing."""
    helping = {name for name, score in standing.contributions.items() if score and score.low > 1}
    return {_parts(each) for each in standing.entry.techniques if each.name in helping}


def _parts(technique: Technique) -> Parts:
    """Tell techniques apart by what they do, not by what they are called or set to.

    Another name for the same transform does not make it rare. Techniques of Python code, and those
    of the competition itself such as kv-cache, have nothing but their name.
    """
    names = [name for name, _ in technique.transforms] or _of_catalog().get(technique.name)
    return frozenset(names or [technique.name])


@cache
def _of_catalog() -> dict[str, list[str]]:
    """Give the names of the transforms of each entry of the catalog."""
    return {each.name: [type(part).__name__ for part in each.transforms] for each in CATALOG}
