"""The board: who is best at what, as far as the records show; a pure function of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tinytorch.competition.boards.innovation import Innovation, composite_of, innovation_of
from tinytorch.competition.boards.standings import (
    Contest,
    RefusedRun,
    Standing,
    Standings,
    contest_of,
    gather_standings,
    in_order,
    pooled_score,
    ranks_of,
)
from tinytorch.competition.events import DIVISIONS, EVENTS
from tinytorch.competition.judgement import FASTER_BEYOND, Heat, Score
from tinytorch.competition.rounds import Round
from tinytorch.competition.runs.kept_run import NOT_CHECKED, DamagedFile, KeptRun
from tinytorch.errors import SettingError

__all__ = ["KINDS", "Board", "BoardKind", "ContestBoard", "Mark", "Place", "Ranking", "make_board"]

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
        """Give one of the three tables."""
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
    """Runs that are signed, and not ranked while nobody can check that here."""


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
        """Give the contests of one event, or all of them."""
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
    found: Sequence[tuple[Standing, Innovation]], score_of: Callable[[Standing, Innovation], Score]
) -> tuple[Place, ...]:
    """Rank by one score: by rank, inside of a band by value, then by the least memory."""
    scores = [score_of(*each) for each in found]
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
        names = [each.name for each in judgement.event.scored]
        if max(_ratio(heat, names) for heat in heats) <= best:
            continue  # The interval ends before its best heat; all pairs of heats take longer.
        score = pooled_score(heats, names)
        if score is not None and score.low > best:
            best, entry = score.value, judgement.entry
            marks.append(Mark(judgement.created_at, entry.team, entry.sha256, score))
    return tuple(marks)


def _ratio(heat: Heat, names: Sequence[str]) -> float:
    """Give the score of a single heat."""
    return math.prod(heat.reference[name] / heat.entry[name] for name in names) ** (1 / len(names))
