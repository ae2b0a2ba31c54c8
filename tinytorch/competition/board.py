"""The board: who is best at what, as far as the records show; a pure function of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.entry import Entry, Technique
from tinytorch.competition.events import DIVISIONS, EVENTS, Event, find_event
from tinytorch.competition.judgement import FASTER_BEYOND, FEWEST_HEATS, Heat, Score, score_of
from tinytorch.competition.rounds import Round
from tinytorch.competition.run_files import (
    NOT_CHECKED,
    SEED_NOT_REVEALED,
    DamagedFile,
    KeptRun,
    Status,
)
from tinytorch.errors import SettingError
from tinytorch.tuning.catalog import CATALOG

# ---------------------------------------------------------------- standings: what all runs of an
# entry show together, and who is shown to be better than whom

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
    def is_unconfined(self) -> bool:
        """Whether code ran without a sandbox in any of the runs."""
        return any(run.judgement.is_unconfined for run in self.runs)

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
        found = score_of(self.heats, self.event.scored)
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
        return {name: score_of(pools[name], self.event.scored) for name in names}

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
        scores = [score_of(run.judgement.heats, self.event.scored) for run in self.runs]
        known = [each for each in scores if each is not None]
        return [each.low for each in known], [each.high for each in known]


@dataclass(frozen=True)
class Standings:
    """What is ranked, what is not, and all valid entries that ever ran, the ranked ones included.

    Every tuple is sorted, so that the order in which records were read makes no difference.
    """

    current: tuple[Standing, ...]
    every: tuple[Standing, ...]
    refused: tuple[RefusedRun, ...]


def contest_of(run: KeptRun) -> Contest:
    """Return the contest of a run."""
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
    """Return why a run cannot be ranked; "" if it can."""
    judgement = run.judgement
    broken = sorted({each.rule for each in judgement.findings if each.is_fatal})
    if broken:
        return f"it breaks {', '.join(broken)}"
    if len(judgement.heats) < FEWEST_HEATS:
        return f"{len(judgement.heats)} heats, at least {FEWEST_HEATS} are needed"
    return "" if score_of(judgement.heats, judgement.event.scored) else NO_MEASURE


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
    """Return the valid runs of an entry, and the refused ones."""
    wrong = [RefusedRun(run, reason) for run in runs if (reason := refusal_of(run))]
    valid = [run for run in runs if not refusal_of(run)]
    if not is_found_out and len(valid) > len(wrong):
        return valid, wrong
    reason = NOT_CONFIRMED if is_found_out else OUTNUMBERED
    return [], wrong + [RefusedRun(run, reason) for run in valid]


def ranks_of(scores: Sequence[Score]) -> list[int]:
    """Return the ranks: 1 + the number of scores whose lower bound exceeds this one's upper bound.

    >>> ranks_of([Score(2, 1.9, 2.1, n=10), Score(2.05, 1.8, 2.3, n=10), Score(1, 0.9, 1.1, n=10)])
    [1, 1, 3]
    """
    return [1 + sum(other.low > each.high for other in scores) for each in scores]


def _current(every: Sequence[Standing]) -> list[Standing]:
    """Return the latest standing of each team in each contest, verified and unverified."""
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


# ---------------------------------------------------------------- innovation, measured: what a
# technique contributes at least, and how rare it is
#
# Each declared technique was switched off in turn. Its credit is the logarithm of the lower bound
# of what the entry gains by it, weighted by how few others use it. All credits together are capped
# by what the entry gains over the reference, so that neither splitting one technique into two nor a
# part that is slow on purpose, and then left out, pays beyond that.

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
        """Between 1 / (1 + others), where all use it, and 1, where no other team does."""
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
        """How much faster its own techniques make it, weighted; 1 where that is inconclusive."""
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
        return Score(self.value, self.value, self.high, n=self.speed.n)

    @property
    def _sum(self) -> float:
        return math.fsum(each.value for each in self.credits)

    def _cap(self, bound: float) -> float:
        bonus = max((each.bonus for each in self.credits), default=1.0)
        return bonus * math.log(max(1.0, bound))


def innovation_of(standing: Standing, current: Sequence[Standing]) -> Innovation:
    """Compute the innovation credits of a standing among the standings ranked now."""
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
    """Return 70% speed and 30% innovation, with the bounds of both."""

    def mixed(part: float, new: float) -> float:
        return SPEED_SHARE * part + (1 - SPEED_SHARE) * new

    return Score(
        mixed(speed.value, innovation.value),
        mixed(speed.low, innovation.value),
        mixed(speed.high, innovation.high),
        n=speed.n,
    )


def _teams_without(parts: Parts, others: Collection[Set[str]]) -> int:
    """Count the teams without a technique: it is as rare as its most common part.

    Otherwise a common transform would be rare as soon as it is declared together with another.
    """
    return min(sum(each not in theirs for theirs in others) for each in parts)


def _helping(standing: Standing) -> set[Parts]:
    """Return the parts of each technique whose contribution has a lower bound above 1."""
    helping = {name for name, score in standing.contributions.items() if score and score.low > 1}
    return {_parts(each) for each in standing.entry.techniques if each.name in helping}


def _parts(technique: Technique) -> Parts:
    """Identify a technique by its transforms, not by its name or settings.

    Another name for the same transform does not make it rare. Techniques of Python code, and those
    of the competition itself such as kv-cache, have nothing but their name.
    """
    names = [name for name, _ in technique.transforms] or _of_catalog().get(technique.name)
    return frozenset(names or [technique.name])


@cache
def _of_catalog() -> dict[str, list[str]]:
    """Return the transform names of each catalog entry."""
    return {each.name: [type(part).__name__ for part in each.transforms] for each in CATALOG}


# ---------------------------------------------------------------- the board: who is best at what,
# as far as the records show; a pure function of them

BoardKind = Literal["speed", "innovation", "composite"]
KINDS: tuple[BoardKind, ...] = ("speed", "innovation", "composite")


@dataclass(frozen=True)
class Place:
    """A standing with its rank in one table. Those who share a rank are a band."""

    rank: int
    score: Score
    standing: Standing
    innovation: Innovation

    @property
    def composite(self) -> Score:
        """70% speed and 30% innovation, whichever table this is."""
        return composite_of(self.standing.score, self.innovation)


@dataclass(frozen=True)
class Mark:
    """A record that was set: the score of an entry over its runs up to that moment."""

    created_at: str
    team: str
    entry_sha256: str
    score: Score


@dataclass(frozen=True)
class Ranking:
    """The three tables of those who are verified, or of those who are not, and their records."""

    speed: tuple[Place, ...] = ()
    innovation: tuple[Place, ...] = ()
    composite: tuple[Place, ...] = ()
    history: tuple[Mark, ...] = ()

    def table(self, kind: BoardKind) -> tuple[Place, ...]:
        """Return one of the three tables."""
        if kind not in KINDS:
            raise SettingError(f"no board of {kind!r}; there are {', '.join(KINDS)}")
        found: tuple[Place, ...] = getattr(self, kind)
        return found


@dataclass(frozen=True)
class ContestBoard:
    """Everything about one event in one division at one tier."""

    contest: Contest
    verified: Ranking
    unverified: Ranking
    refused: tuple[RefusedRun, ...]
    not_checked: tuple[KeptRun, ...] = ()
    """Signed runs, which are not ranked while their signature cannot be checked here."""


@dataclass(frozen=True)
class Board:
    """All contests, all runs (oldest first, copies left out), rounds, and files that do not count.

    The tiers are apart: an entry stands in the tier that it was entered for.
    """

    contests: tuple[ContestBoard, ...]
    runs: tuple[KeptRun, ...]
    damaged: tuple[DamagedFile, ...] = ()
    rounds: tuple[Round, ...] = ()

    def of_event(self, event: str | None) -> tuple[ContestBoard, ...]:
        """Return the contests of one event, or all of them."""
        return tuple(each for each in self.contests if event in (None, each.contest.event))


def make_board(
    runs: Sequence[KeptRun],
    *,
    rounds: Sequence[Round] = (),
    damaged: Sequence[DamagedFile] = (),
) -> Board:
    """Make the board of these runs; in whatever order they come, it is the same."""
    kept = in_order(runs)
    found = gather_standings([run for run in kept if run.status != NOT_CHECKED])
    contests = sorted({contest_of(run) for run in kept}, key=_contest_order)
    return Board(
        tuple(
            ContestBoard(
                contest,
                _ranking(contest, found, is_verified=True),
                _ranking(contest, found, is_verified=False),
                tuple(each for each in found.refused if contest_of(each.run) == contest),
                tuple(r for r in kept if r.status == NOT_CHECKED and contest_of(r) == contest),
            )
            for contest in contests
        ),
        tuple(kept),
        tuple(sorted(set(damaged), key=lambda each: (each.path, each.reason))),
        tuple(sorted(set(rounds), key=lambda each: (each.created_at, each.name, each.commitment))),
    )


def _contest_order(contest: Contest) -> tuple[int, int, float]:
    divisions: list[str] = list(DIVISIONS)
    return list(EVENTS).index(contest.event), divisions.index(contest.division), contest.tier


def _ranking(contest: Contest, found: Standings, *, is_verified: bool) -> Ranking:
    def belongs(standing: Standing) -> bool:
        return standing.contest == contest and standing.is_verified == is_verified

    rows = [(each, innovation_of(each, found.current)) for each in filter(belongs, found.current)]
    return Ranking(
        _table(rows, lambda standing, _: standing.score),
        _table(rows, lambda _, innovation: innovation.as_score),
        _table(rows, lambda standing, innovation: composite_of(standing.score, innovation)),
        _history(filter(belongs, found.every)),
    )


def _table(
    found: Sequence[tuple[Standing, Innovation]], ranked_by: Callable[[Standing, Innovation], Score]
) -> tuple[Place, ...]:
    """Rank by one score: by rank, inside of a band by value, then by the least memory."""
    scores = [ranked_by(*each) for each in found]
    places = [
        Place(rank, score, standing, innovation)
        for rank, score, (standing, innovation) in zip(ranks_of(scores), scores, found, strict=True)
    ]
    return tuple(sorted(places, key=_order))


def _order(place: Place) -> tuple[int, float, float, str]:
    peak = place.standing.peak_bytes
    return (
        place.rank,
        -place.score.value,
        float("inf") if peak is None else peak,
        place.standing.team,
    )


def _history(standings: Iterable[Standing]) -> tuple[Mark, ...]:
    """Walk through the runs of all valid entries, oldest first: who held the record from when.

    An entry sets one when all of its runs until then show that it is better than the score of the
    former, or, for the first, that it is faster than the reference.
    """
    best, marks = FASTER_BEYOND, []
    pools: dict[int, list[Heat]] = {}
    owners = [(run, number) for number, each in enumerate(standings) for run in each.runs]
    for run, number in sorted(
        owners, key=lambda each: (each[0].judgement.created_at, each[0].sha256)
    ):
        judgement = run.judgement
        heats = pools.setdefault(number, [])
        heats += judgement.heats
        names = judgement.event.scored
        if max(_ratio(heat, names) for heat in heats) <= best:
            continue  # The interval ends before its best heat; all pairs of heats take longer.
        score = score_of(heats, names)
        if score is not None and score.low > best:
            best, entry = score.value, judgement.entry
            marks.append(Mark(judgement.created_at, entry.team, entry.sha256, score))
    return tuple(marks)


def _ratio(heat: Heat, names: Sequence[str]) -> float:
    """Return the score of a single heat."""
    return math.prod(heat.reference[name] / heat.entry[name] for name in names) ** (1 / len(names))
