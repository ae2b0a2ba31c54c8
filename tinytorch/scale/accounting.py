"""Where the steps of all ranks spent their time: collectives matched, each moment counted once.

Moments are microseconds of rank 0's clock. The transfer of a collective begins with the arrival of
its last rank; what a rank is blocked before that is waiting for this rank.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from tinytorch.scale.clocks import offset_at
from tinytorch.scale.rank_file import (
    BACKWARD,
    FORWARD,
    INPUT,
    RankRecord,
    Site,
    StepRecord,
)

Interval = tuple[float, float]
PARTS = ("compute", "hidden", "exposed", "waiting", "input", "host")
"""The parts of a step. `hidden` is computing while something is transferred, `compute` the rest of
it; `exposed` is blocked by a transfer, `waiting` by a rank that had not come yet."""
Key = tuple[str, int]
"""A collective of all ranks: the name of its group and its number there."""


@dataclass(frozen=True)
class Matched:
    """One collective over all of its ranks: when each launched it, and when it was done there."""

    site: Site
    launched: Mapping[int, float]
    done: Mapping[int, float]

    @property
    def is_complete(self) -> bool:
        return len(self.launched) == len(self.site.ranks)

    @property
    def arrival(self) -> float:
        """The moment at which the last rank came."""
        return max(self.launched.values())

    @property
    def last_rank(self) -> int:
        return max(self.launched, key=lambda rank: self.launched[rank])

    def transfer(self, rank: int) -> Interval | None:
        """Return when data moved for a rank; None where a rank is missing or the end unknown."""
        end = self.done.get(rank)
        if end is None or not self.is_complete:
            return None
        # Clocks agree up to an error: nothing is done before its last rank has come.
        return min(self.arrival, end), end


@dataclass(frozen=True)
class RankStep:
    """A step of one rank on the clock of rank 0."""

    rank: int
    number: int
    begin: float
    end: float
    keys: tuple[Key, ...]
    waits: tuple[tuple[float, float, Key | None], ...]
    spans: tuple[tuple[str, float, float], ...]
    layers: tuple[int, ...] = ()

    @property
    def duration(self) -> float:
        return self.end - self.begin


@dataclass
class Timeline:
    """All ranks on one clock: steps by rank and number, and collectives by key."""

    steps: dict[int, dict[int, RankStep]] = field(default_factory=dict)
    collectives: dict[Key, Matched] = field(default_factory=dict)
    clock_error_us: float = 0.0

    @property
    def common(self) -> list[int]:
        """The numbers of the steps that all ranks have."""
        numbers = [set(each) for each in self.steps.values()]
        return sorted(set.intersection(*numbers)) if numbers else []


def align(records: Sequence[RankRecord]) -> Timeline:
    """Return what the ranks recorded on one clock, their collectives matched."""
    found = Timeline()
    launched: dict[Key, dict[int, float]] = {}
    done: dict[Key, dict[int, float]] = {}
    sites: dict[Key, Site] = {}
    for record in records:
        found.clock_error_us = max(
            [found.clock_error_us, *(each.error for each in record.clocks if record.rank)]
        )
        steps: dict[int, RankStep] = {}
        for step in record.steps:
            offset = offset_at(record.clocks, step.begin)
            shift = step.begin + offset
            keys = []
            for call in step.calls:
                site = record.sites[call.site]
                key = (site.group, call.number)
                keys.append(key)
                sites[key] = site
                launched.setdefault(key, {})[record.rank] = shift + call.launched
                if call.done >= 0:
                    done.setdefault(key, {})[record.rank] = shift + call.done
            steps[step.number] = _on_clock(record.rank, step, shift, tuple(keys), steps)
        found.steps[record.rank] = steps
    for key, site in sites.items():
        found.collectives[key] = Matched(site, launched[key], done.get(key, {}))
    return found


def _on_clock(
    rank: int,
    step: StepRecord,
    shift: float,
    keys: tuple[Key, ...],
    before: Mapping[int, RankStep],
) -> RankStep:
    waits = []
    for wait in step.waits:
        key: Key | None = None
        if wait.call >= 0:
            owner = before.get(step.number - wait.back) if wait.back else None
            theirs = owner.keys if owner else keys
            if (wait.back and owner is None) or wait.call >= len(theirs):
                continue  # Launched before the first step that was recorded.
            key = theirs[wait.call]
        waits.append((shift + wait.begin, shift + wait.end, key))
    spans = tuple((each.phase, shift + each.begin, shift + each.end) for each in step.spans)
    end = shift + step.duration
    return RankStep(rank, step.number, shift, end, keys, tuple(waits), spans, step.layers)


# ---------------------------------------------------------------- the parts of a step


def split(step: RankStep, collectives: Mapping[Key, Matched]) -> dict[str, float]:
    """Return the microseconds of each part of a step; they add up to it."""
    waiting: list[Interval] = []
    exposed: list[Interval] = []
    for begin, end, key in step.waits:
        if key is None:
            late, moved = _blocked_by_all(step, collectives, begin, end)
        else:
            late, moved = _blocked_by(collectives[key], step.rank, begin, end)
        waiting += late
        exposed += moved
    whole = [(step.begin, step.end)]
    exposed = within(union(exposed), whole)
    waiting = without(within(union(waiting), whole), exposed)
    blocked = union([*exposed, *waiting])
    loading = without(within(union(_of(step, INPUT)), whole), blocked)
    computing = without(within(union(_computing(step)), whole), [*blocked, *loading])
    moved = union(filter(None, (collectives[key].transfer(step.rank) for key in step.keys)))
    parts = {
        "compute": length(without(computing, moved)),
        "hidden": length(within(computing, moved)),
        "exposed": length(exposed),
        "waiting": length(waiting),
        "input": length(loading),
    }
    return {**parts, "host": max(0.0, step.duration - sum(parts.values()))}


def _blocked_by(
    matched: Matched, rank: int, begin: float, end: float
) -> tuple[list[Interval], list[Interval]]:
    """Split a wait for one collective into waiting for its last rank, and its transfer."""
    if not matched.is_complete:
        return [(begin, end)], []
    middle = min(max(matched.arrival, begin), end)
    return [(begin, middle)], [(middle, end)]


def _blocked_by_all(
    step: RankStep, collectives: Mapping[Key, Matched], begin: float, end: float
) -> tuple[list[Interval], list[Interval]]:
    """Split a wait for all that is underway: while anything is transferred, it is the transfer."""
    waited = {key for _, _, key in step.waits if key is not None}
    underway = [collectives[key] for key in step.keys if key not in waited]
    moved = union(filter(None, (each.transfer(step.rank) for each in underway)))
    pending = union(
        (each.launched[step.rank], each.done.get(step.rank, end))
        for each in underway
        if each.launched[step.rank] < end
    )
    block = [(begin, end)]
    exposed = within(block, moved)
    return without(within(block, pending), exposed), exposed


def _of(step: RankStep, phase: str) -> list[Interval]:
    return [(begin, end) for name, begin, end in step.spans if name == phase]


def _computing(step: RankStep) -> list[Interval]:
    """Return when the rank computed; between forward and backward pass stands the loss."""
    found = [(begin, end) for name, begin, end in step.spans if name != INPUT]
    spans = sorted(step.spans, key=lambda each: each[1])
    for (before, _, end), (after, begin, _) in pairwise(spans):
        if (before, after) == (FORWARD, BACKWARD):
            found.append((end, begin))
    return found


# ---------------------------------------------------------------- intervals


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals in their order, without overlaps."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def within(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return what two lists without overlaps have in common."""
    found = []
    begins = [begin for begin, _ in others]
    for begin, end in intervals:
        for other_begin, other_end in others[max(0, bisect_right(begins, begin) - 1) :]:
            if other_begin >= end:
                break
            if other_end > begin:
                found.append((max(begin, other_begin), min(end, other_end)))
    return found


def without(intervals: Sequence[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Return what is left of intervals when others are taken out."""
    found = []
    taken = union(others)
    for begin, end in intervals:
        for other_begin, other_end in within([(begin, end)], taken):
            if other_begin > begin:
                found.append((begin, other_begin))
            begin = other_end
        if begin < end:
            found.append((begin, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


# ---------------------------------------------------------------- collectives by what they move


def transfers_by_site(timeline: Timeline) -> dict[Site, list[float]]:
    """Return the microseconds of every transfer, by what is done with how many bytes.

    Where several of a group are underway, each counts from the end of that before it.
    """
    ended: dict[tuple[str, int], list[tuple[float, float, Key]]] = {}
    for key, matched in timeline.collectives.items():
        for rank in matched.launched:
            interval = matched.transfer(rank)
            if interval is not None:
                ended.setdefault((key[0], rank), []).append((interval[1], interval[0], key))
    times: dict[Key, list[float]] = {}
    for rows in ended.values():
        freed = -math.inf
        for end, begin, key in sorted(rows):
            times.setdefault(key, []).append(end - max(begin, freed))
            freed = end
    found: dict[Site, list[float]] = {}
    for key, each in times.items():
        found.setdefault(timeline.collectives[key].site, []).append(median(each))
    return found
