"""The steps once more from their parts: the critical path, and what would be without a slow rank.

Between two collectives a rank works for as long as it did; a collective moves its data for as long
as it did, from the arrival of its last rank. What follows for the steps is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinytorch.codec import Coded
from tinytorch.comparison.sequential import estimate_ratio
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import FEWEST
from tinytorch.scale.accounting import Key, RankStep, Timeline
from tinytorch.scale.stragglers import BLOCKS, LEAST_BLOCK

LAUNCH, WAIT, END = "launch", "wait", "end"
COVERAGE = 0.95
REPEATS = 5
"""How often the steps of a slow rank are replaced by others, drawn at random."""
FIDELITY = 0.05
"""By how much of a step the replay may miss what was measured before its answers are doubted."""


@dataclass(frozen=True)
class WhatIf(Coded):
    """How many times faster steps would be if a rank worked as long as the others do."""

    rank: int
    speedup: Estimate


@dataclass(frozen=True)
class PathPart(Coded):
    """A share of the critical path: a rank that computes, loads or does something else, or a link.

    A transfer belongs to no rank (-1).
    """

    rank: int
    part: str
    share: float


@dataclass(frozen=True)
class _Event:
    """What a rank does after working for `work` microseconds."""

    kind: str
    keys: tuple[Key, ...]
    work: float


Program = dict[int, list[list[_Event]]]
"""The events of each rank, step by step."""


def program_of(timeline: Timeline, numbers: Sequence[int]) -> Program:
    """Return the events of all ranks in some steps."""
    return {
        rank: [_events(steps[number], timeline) for number in numbers]
        for rank, steps in timeline.steps.items()
    }


def _events(step: RankStep, timeline: Timeline) -> list[_Event]:
    waited = {key for _, _, key in step.waits if key is not None}
    launches: list[tuple[float, float, str, tuple[Key, ...]]] = [
        (timeline.collectives[key].launched[step.rank], 0.0, LAUNCH, (key,)) for key in step.keys
    ]
    waits: list[tuple[float, float, str, tuple[Key, ...]]] = []
    for begin, end, key in step.waits:
        underway = (
            (key,)
            if key is not None
            else tuple(
                each
                for each in step.keys
                if each not in waited and timeline.collectives[each].launched[step.rank] <= begin
            )
        )
        done = [timeline.collectives[each].done.get(step.rank, end) for each in underway]
        # What is after the last transfer is work: DDP copies what came into the gradients.
        waits.append((begin, min(end, max([begin, *done])), WAIT, underway))
    found, now = [], step.begin
    for begin, end, kind, keys in sorted(launches + waits):
        found.append(_Event(kind, keys, max(0.0, begin - now)))
        now = max(now, begin, end if kind == WAIT else begin)
    found.append(_Event(END, (), max(0.0, step.end - now)))
    return found


@dataclass
class _Replayed:
    """When each event of each rank ended, and on which event of which rank it depended."""

    ends: dict[int, list[list[float]]]
    causes: dict[tuple[int, int, int], tuple[int, int, int, float]]
    """Rank, step, event -> that of the last rank's launch, and how long the transfer took."""

    @property
    def step_ends(self) -> np.ndarray:
        """When the last rank ended each step."""
        return np.max([[each[-1] for each in steps] for steps in self.ends.values()], axis=0)


def replay(program: Program, timeline: Timeline) -> _Replayed:
    """Compute when each event happens."""
    transfers = _transfers(timeline)
    launched: dict[Key, dict[int, tuple[float, int, int]]] = {}
    found = _Replayed({rank: [[]] for rank in program}, {})
    places = dict.fromkeys(program, (0, 0))
    clocks = dict.fromkeys(program, 0.0)
    needed = _participants(program)
    goes_on = True
    while goes_on:
        goes_on = False
        for rank, steps in program.items():
            at, event_at = places[rank]
            while at < len(steps):
                event = steps[at][event_at]
                now = clocks[rank] + event.work
                if event.kind == LAUNCH:
                    launched.setdefault(event.keys[0], {})[rank] = (now, at, event_at)
                elif event.kind == WAIT:
                    known = [key for key in event.keys if key in needed]
                    if any(len(launched.get(key, ())) < needed[key] for key in known):
                        break
                    now = _after(rank, at, event_at, known, now, launched, transfers, found)
                clocks[rank] = now
                found.ends[rank][at].append(now)
                event_at += 1
                if event_at == len(steps[at]):
                    at, event_at = at + 1, 0
                    if at < len(steps):
                        found.ends[rank].append([])
                places[rank] = (at, event_at)
                goes_on = True
    return found


def _after(
    rank: int,
    at: int,
    event_at: int,
    keys: Sequence[Key],
    now: float,
    launched: Mapping[Key, Mapping[int, tuple[float, int, int]]],
    transfers: Mapping[tuple[Key, int], float],
    found: _Replayed,
) -> float:
    for key in keys:
        last = max(launched[key], key=lambda each: launched[key][each][0])
        arrival, step, place = launched[key][last]
        took = transfers.get((key, rank), 0.0)
        if arrival + took > now:
            now = arrival + took
            found.causes[rank, at, event_at] = (last, step, place, took)
    return now


def _transfers(timeline: Timeline) -> dict[tuple[Key, int], float]:
    found = {}
    for key, matched in timeline.collectives.items():
        for rank in matched.launched:
            interval = matched.transfer(rank)
            if interval is not None:
                found[key, rank] = interval[1] - interval[0]
    return found


def _participants(program: Program) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for steps in program.values():
        for events in steps:
            for event in events:
                if event.kind == LAUNCH:
                    found[event.keys[0]] = found.get(event.keys[0], 0) + 1
    return found


# ---------------------------------------------------------------- without a slow rank


def without_rank(
    timeline: Timeline,
    numbers: Sequence[int],
    rank: int,
    *,
    rng: np.random.Generator,
) -> WhatIf | None:
    """Return how much faster steps would be if a rank took as long as the others.

    Its work is replaced by that of another rank in another step, drawn at random: the same step
    would make both equally long, and ranks that differ from step to step wait for each other.
    Where both steps do not have as many events, all work is scaled by the same factor. None where
    there are too few steps.
    """
    size = max(LEAST_BLOCK, -(-len(numbers) // BLOCKS))
    if len(numbers) // size < FEWEST or len(timeline.steps) < 2:
        return None
    program = program_of(timeline, numbers)
    others = [each for each in program if each != rank]
    before = _block_lengths(replay(program, timeline).step_ends, size)
    lengths = []
    for _ in range(REPEATS):
        steps = []
        for events in program[rank]:
            other = program[others[rng.integers(len(others))]]
            steps.append(_with_work_of(events, other[rng.integers(len(other))]))
        ends = replay({**program, rank: steps}, timeline).step_ends
        lengths.append(_block_lengths(ends, size))
    after = np.mean(lengths, axis=0)
    logs = np.log(after / before)
    return WhatIf(rank, estimate_ratio(logs.tolist(), 1 - COVERAGE).inverse)


def _with_work_of(events: Sequence[_Event], others: Sequence[_Event]) -> list[_Event]:
    if len(events) != len(others):
        share = sum(each.work for each in others) / max(1e-9, sum(each.work for each in events))
        return [_Event(each.kind, each.keys, each.work * share) for each in events]
    return [
        _Event(each.kind, each.keys, other.work) for each, other in zip(events, others, strict=True)
    ]


def _block_lengths(ends: np.ndarray, size: int) -> np.ndarray:
    marks = np.array([0.0, *ends])[::size]
    return np.diff(marks[: len(ends) // size + 1])


# ---------------------------------------------------------------- the critical path


def critical_path(
    timeline: Timeline, numbers: Sequence[int], shares: Mapping[int, Mapping[str, float]]
) -> tuple[list[PathPart], float]:
    """Return what the steps were made of on the way that no rank could shorten, largest first.

    A rank's work on it is divided as all of its work is (`shares` of parts, by rank). The second
    result is the length of the replayed steps over that of the measured ones.
    """
    program = program_of(timeline, numbers)
    found = replay(program, timeline)
    if any(len(found.ends[rank][-1]) < len(program[rank][-1]) for rank in program):
        return [], 0.0
    rank = max(found.ends, key=lambda each: found.ends[each][-1][-1])
    total = found.ends[rank][-1][-1]
    spent: dict[tuple[int, str], float] = {}
    step, place = len(numbers) - 1, len(program[rank][-1]) - 1
    while step >= 0:
        cause = found.causes.get((rank, step, place))
        if cause is not None:
            rank, step, place, took = cause
            spent[-1, "transfer"] = spent.get((-1, "transfer"), 0.0) + took
        work = program[rank][step][place].work
        for part, share in shares[rank].items():
            spent[rank, part] = spent.get((rank, part), 0.0) + share * work
        place -= 1
        if place < 0:
            step -= 1
            place = len(program[rank][step]) - 1
    parts = [PathPart(*key, each / total) for key, each in spent.items() if each > 0]
    measured = max(
        sum(steps[number].duration for number in numbers) for steps in timeline.steps.values()
    )
    return sorted(parts, key=lambda each: -each.share), total / measured
