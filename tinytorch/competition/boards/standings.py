"""Standings: what all runs of an entry show together, and who is shown to be better than whom."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entries.entry import Entry
from tinytorch.competition.events import Event, find_event
from tinytorch.competition.judgement import FEWEST_HEATS, Heat, Score, score_of
from tinytorch.competition.runs.kept_run import SEED_NOT_REVEALED, KeptRun, Status

__all__ = [
    "Contest",
    "RefusedRun",
    "Standing",
    "Standings",
    "contest_of",
    "gather_standings",
    "in_order",
    "pooled_score",
    "ranks_of",
    "refusal_of",
]

PEAK_MEMORY = "peak memory"
OUTNUMBERED = "its entry has as many runs that are not valid as valid ones"
NOT_CONFIRMED = "the organiser's own runs of this entry are not valid"
NO_MEASURE = "a heat has no value above zero for a measure that counts"


@dataclass(frozen=True, order=True)
class Contest:
    """Where entries compete with each other: an event in a division at a tier."""

    event: str
    division: str
    tier: float


@dataclass(frozen=True)
class RefusedRun:
    """A run that is not ranked, and why."""

    run: KeptRun
    reason: str


def pooled_score(heats: Sequence[Heat], measures: Sequence[str]) -> Score | None:
    """Give the score of these heats; None where there are too few, or a value is missing."""
    if len(heats) < FEWEST_HEATS or not measures:
        return None
    is_usual = all(_has_ratio(heat, name) for heat in heats for name in measures)
    return score_of(heats, measures) if is_usual else None


@dataclass(frozen=True)
class Standing:
    """One entry with all of its runs, pooled: no run is chosen, so no run is the best of many.

    `runs` are the valid ones, oldest first, all of them verified or none. `refused` counts those
    of the same entry that are not, `entries_tried` the entries of the team in this contest.
    """

    contest: Contest
    runs: tuple[KeptRun, ...]
    refused: int = 0
    entries_tried: int = 1

    @property
    def entry(self) -> Entry:
        return self.runs[-1].judgement.entry

    @property
    def team(self) -> str:
        return self.entry.team

    @property
    def event(self) -> Event:
        return find_event(self.contest.event)

    @property
    def is_verified(self) -> bool:
        return self.runs[0].is_verified

    @property
    def status(self) -> Status:
        """The weakest status among the runs."""
        found = {run.status for run in self.runs}
        return SEED_NOT_REVEALED if SEED_NOT_REVEALED in found else self.runs[0].status

    @property
    def created_at(self) -> str:
        """When the last run was made."""
        return self.runs[-1].judgement.created_at

    @property
    def accuracy(self) -> AccuracyComparison | None:
        """The accuracy that the last run has shown."""
        return self.runs[-1].judgement.accuracy

    @cached_property
    def heats(self) -> tuple[Heat, ...]:
        """The heats of all runs."""
        return tuple(heat for run in self.runs for heat in run.judgement.heats)

    @cached_property
    def score(self) -> Score:
        """The score over the heats of all runs.

        Heats of one run have a machine and an hour in common. Where runs do not agree, pooling
        them would pretend to know more: then the interval reaches over those of all runs.
        """
        found = pooled_score(self.heats, self._scored)
        assert found is not None, "a run without a score is refused"
        if self.do_runs_agree:
            return found
        lows, highs = self._bounds
        return replace(found, low=min(lows), high=max(highs))

    @cached_property
    def contributions(self) -> dict[str, Score | None]:
        """What each technique contributes over the heats of all runs; None where not measured."""
        pools: dict[str, list[Heat]] = {each.name: [] for each in self.entry.techniques}
        for run in self.runs:
            for each in run.judgement.ablations:
                pools.setdefault(each.technique, []).extend(each.heats)
        names = [each.name for each in self.entry.techniques]
        return {name: pooled_score(pools[name], self._scored) for name in names}

    @cached_property
    def peak_bytes(self) -> float | None:
        """The median over all heats of what the entry's process grows by."""
        values = [heat.entry.get(PEAK_MEMORY, math.nan) for heat in self.heats]
        known = [value for value in values if math.isfinite(value)]
        return statistics.median(known) if known else None

    @property
    def do_runs_agree(self) -> bool:
        """Whether the intervals of all single runs have a value in common."""
        lows, highs = self._bounds
        return max(lows) <= min(highs)

    @cached_property
    def _bounds(self) -> tuple[list[float], list[float]]:
        """The lower and the upper ends of the intervals of all single runs."""
        scores = [pooled_score(run.judgement.heats, self._scored) for run in self.runs]
        known = [each for each in scores if each is not None]
        return [each.low for each in known], [each.high for each in known]

    @property
    def _scored(self) -> list[str]:
        return [each.name for each in self.event.scored]


@dataclass(frozen=True)
class Standings:
    """What is ranked, what is not, and all valid entries that ever ran, the ranked ones included.

    Every tuple is sorted, so that the order in which records were read makes no difference.
    """

    current: tuple[Standing, ...]
    every: tuple[Standing, ...]
    refused: tuple[RefusedRun, ...]


def contest_of(run: KeptRun) -> Contest:
    """Tell where a run competes."""
    entry = run.judgement.entry
    return Contest(entry.event, entry.division, entry.tier)


def in_order(runs: Iterable[KeptRun]) -> list[KeptRun]:
    """Sort runs by when they were made, and leave out copies: a record counts once.

    Of copies, the one that is believed most stays.
    """
    found: dict[str, KeptRun] = {}
    loose = []
    for run in sorted(runs, key=lambda each: (not each.is_verified, each.status, each.path)):
        if run.sha256:
            found.setdefault(run.sha256, run)
        else:
            loose.append(run)
    return sorted([*found.values(), *loose], key=_moment)


def refusal_of(run: KeptRun) -> str:
    """Say why a run cannot be ranked by itself; "" where it can."""
    judgement = run.judgement
    broken = sorted({each.rule for each in judgement.findings if each.is_fatal})
    if broken:
        return f"it breaks {', '.join(broken)}"
    if len(judgement.heats) < FEWEST_HEATS:
        return f"{len(judgement.heats)} heats, at least {FEWEST_HEATS} are needed"
    names = [each.name for each in judgement.event.scored]
    return "" if pooled_score(judgement.heats, names) else NO_MEASURE


def gather_standings(runs: Iterable[KeptRun]) -> Standings:
    """Pool the runs of every entry, and find the one that each team stands with.

    That is the valid entry which it ran last; an entry is valid while its valid runs outnumber the
    others. Verified runs are pooled with verified ones alone, and an entry that has some is not
    shown as unverified, least of all where they are not valid.
    """
    groups: dict[tuple[Contest, str, bool, str], list[KeptRun]] = defaultdict(list)
    for run in in_order(runs):
        entry = run.judgement.entry
        groups[contest_of(run), entry.team, run.is_verified, entry.sha256 or run.sha256].append(run)
    tried: dict[tuple[Contest, str, bool], int] = defaultdict(int)
    for contest, team, is_verified, _ in groups:
        tried[contest, team, is_verified] += 1
    every, refused = [], []
    found_out = set()
    for (contest, team, is_verified, sha256), found in sorted(groups.items(), key=_verified_first):
        valid, wrong = _sort_out(found, is_found_out=(contest, team, sha256) in found_out)
        refused += wrong
        if valid:
            count = tried[contest, team, is_verified]
            every.append(Standing(contest, tuple(valid), len(wrong), count))
        elif is_verified:
            found_out.add((contest, team, sha256))
    every.sort(key=_place)
    refused.sort(key=lambda each: (contest_of(each.run), *_moment(each.run)))
    return Standings(tuple(_current(every)), tuple(every), tuple(refused))


def _verified_first(group: tuple[tuple[Contest, str, bool, str], list[KeptRun]]) -> bool:
    (_, _, is_verified, _), _ = group
    return not is_verified


def _sort_out(
    runs: Sequence[KeptRun], *, is_found_out: bool
) -> tuple[list[KeptRun], list[RefusedRun]]:
    """Give the runs of an entry that count, and those that do not."""
    wrong = [RefusedRun(run, reason) for run in runs if (reason := refusal_of(run))]
    valid = [run for run in runs if not refusal_of(run)]
    if not is_found_out and len(valid) > len(wrong):
        return valid, wrong
    reason = NOT_CONFIRMED if is_found_out else OUTNUMBERED
    return [], wrong + [RefusedRun(run, reason) for run in valid]


def ranks_of(scores: Sequence[Score]) -> list[int]:
    """Give each its rank: 1 + how many are shown to be better, their low being above its high.

    >>> ranks_of([Score(2, 1.9, 2.1, 10), Score(2.05, 1.8, 2.3, 10), Score(1, 0.9, 1.1, 10)])
    [1, 1, 3]
    """
    return [1 + sum(other.low > each.high for other in scores) for each in scores]


def _has_ratio(heat: Heat, name: str) -> bool:
    """Tell whether both sides have a value above zero, not too far apart for a number."""
    reference, entry = heat.reference.get(name, math.nan), heat.entry.get(name, math.nan)
    if not (0 < reference < math.inf and 0 < entry < math.inf):
        return False
    return 0 < reference / entry < math.inf


def _current(every: Sequence[Standing]) -> list[Standing]:
    """Give the standing of each team in each contest, verified and not."""
    verified = {(each.contest, each.team, each.entry.sha256) for each in every if each.is_verified}
    last: dict[tuple[Contest, str, bool], Standing] = {}
    for each in every:
        is_shown = each.is_verified or (each.contest, each.team, each.entry.sha256) not in verified
        if is_shown:
            last[each.contest, each.team, each.is_verified] = each  # in order of time
    return sorted(last.values(), key=_place)


def _moment(run: KeptRun) -> tuple[str, str, str]:
    return run.judgement.created_at, run.sha256, run.path


def _place(standing: Standing) -> tuple[Contest, bool, str, str]:
    return standing.contest, not standing.is_verified, *_moment(standing.runs[-1])[:2]
