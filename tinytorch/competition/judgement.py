"""Judgement: what a judge saw of an entry, and the score that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entry import Entry
from tinytorch.competition.events import Event, find_event
from tinytorch.competition.rules import Finding
from tinytorch.measure.estimate import Estimate, time_verdict
from tinytorch.measure.interleaving import hodges_lehmann, signed_rank_interval

CONFIDENCE = 0.95
FASTER_BEYOND = 1.02
"""An entry is faster when all of its interval lies beyond this."""
FEWEST_HEATS = 6
"""With six the interval from the smallest to the largest still covers 95%."""


@dataclass(frozen=True)
class Heat:
    """One start of both sides as fresh processes: what was measured of each, by measure."""

    reference: Mapping[str, float]
    entry: Mapping[str, float]


@dataclass(frozen=True)
class Score(Estimate):
    """How many times better than the reference; `n` is the number of heats."""

    @property
    def verdict(self) -> str:
        """The verdict of time; beyond 2% it is faster or slower, inside of that the same."""
        share = FASTER_BEYOND - 1
        return time_verdict(self.inverse, floor=share, band=share)


def score_of(heats: Sequence[Heat], measures: Sequence[str]) -> Score | None:
    """Return the geometric mean of the ratios of these measures, with heats as the unit.

    None with too few heats for an interval, without a measure, or where a heat has no ratio.
    """
    if len(heats) < FEWEST_HEATS or not measures:
        return None
    if not all(_has_ratio(heat, name) for heat in heats for name in measures):
        return None
    logs = [
        math.fsum(math.log(heat.reference[name] / heat.entry[name]) for name in measures)
        / len(measures)
        for heat in heats
    ]
    low, high = signed_rank_interval(logs, 1 - CONFIDENCE)
    value = hodges_lehmann(logs)
    return Score(math.exp(value), math.exp(low), math.exp(high), CONFIDENCE, len(logs))


def _has_ratio(heat: Heat, name: str) -> bool:
    """Return whether both values are positive and their ratio is a finite number."""
    reference, entry = heat.reference.get(name, math.nan), heat.entry.get(name, math.nan)
    if not (0 < reference < math.inf and 0 < entry < math.inf):
        return False
    return 0 < reference / entry < math.inf


@dataclass(frozen=True)
class Ablation:
    """One technique switched off: heats of the entry without it (as reference) against the whole.

    Without heats, `reason` says why it could not be measured.
    """

    technique: str
    heats: tuple[Heat, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """Everything that was observed in one run of an entry before the judge.

    `round_name` and `data_sha256` say which questions were asked, `commitment` which seed they come
    from. `protection` says how the entry was kept apart, `system` on what machine.
    """

    entry: Entry
    heats: tuple[Heat, ...]
    accuracy: AccuracyComparison | None
    findings: tuple[Finding, ...]
    ablations: tuple[Ablation, ...] = ()
    round_name: str = "practice"
    commitment: str = ""
    data_sha256: str = ""
    protection: Mapping[str, str] = field(default_factory=dict)
    system: Mapping[str, Any] = field(default_factory=dict)
    seconds_used: float = 0.0
    created_at: str = ""
    notes: tuple[str, ...] = ()

    @property
    def event(self) -> Event:
        return find_event(self.entry.event)

    @property
    def is_valid(self) -> bool:
        """Whether nothing fatal was found and there are heats enough for a score."""
        is_clean = not any(each.is_fatal for each in self.findings)
        return is_clean and len(self.heats) >= FEWEST_HEATS

    @property
    def is_unconfined(self) -> bool:
        """Whether code ran without a sandbox, where it could have done anything (rule W1)."""
        return any(each.rule == "W1" for each in self.findings)

    @cached_property
    def score(self) -> Score | None:
        """The score, or None where there are too few heats."""
        return score_of(self.heats, self.event.scored)
