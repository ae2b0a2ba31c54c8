"""RanksProfile: what the ranks of a program have recorded, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.comparison.sequential import estimate_ratio
from tinytorch.errors import Note
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import FEWEST
from tinytorch.scale.accounting import PARTS, Timeline, align, split, transfers_by_site
from tinytorch.scale.rank_file import RankRecord, Site, read_folder
from tinytorch.scale.replay import FIDELITY, PathPart, WhatIf, critical_path, without_rank
from tinytorch.scale.stragglers import (
    FALSE_ALARMS,
    FLOOR,
    Straggler,
    find_slow_links,
    find_stragglers,
    steps_needed,
)
from tinytorch.showing import Shown

Array = npt.NDArray[np.float64]
US = 1e-6


@dataclass(frozen=True)
class RankParts(Coded):
    """The steps of one rank: seconds of each step, and of each of its parts.

    `end` says how the rank ended: "finished", its error, or "" where nothing came any more.
    """

    rank: int
    machine: str
    step_s: tuple[float, ...]
    compute: tuple[float, ...]
    hidden: tuple[float, ...]
    exposed: tuple[float, ...]
    waiting: tuple[float, ...]
    input: tuple[float, ...]
    host: tuple[float, ...]
    end: str = ""
    nbytes: int = 0
    own_share: float | None = None

    def seconds(self, part: str) -> Array:
        """Return the seconds of a part in each step."""
        return np.array(getattr(self, part))

    def share(self, part: str) -> float:
        """Return the share of a part in all steps."""
        return float(self.seconds(part).sum() / max(1e-12, sum(self.step_s)))


@dataclass(frozen=True)
class Collective(Coded):
    """A collective by what it moves: calls in a step, seconds of a transfer, and those alone."""

    kind: str
    group: str
    ranks: tuple[int, ...]
    nbytes: int
    dtype: str
    calls: float
    seconds: float
    bare_s: float | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes per second; of the whole data, however often it is sent."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def ceiling(self) -> float | None:
        """The same, of the collective alone."""
        return self.nbytes / self.bare_s if self.bare_s else None


@dataclass(frozen=True)
class LayerTimes(Coded):
    """The median seconds of a layer's forward passes in a step, by rank."""

    path: str
    seconds: tuple[float, ...]

    @property
    def imbalance(self) -> float:
        """The slowest rank over the median of all."""
        return max(self.seconds) / max(1e-9, float(np.median(self.seconds)))


@dataclass(frozen=True)
class Link(Coded):
    """The bandwidth from one rank to another, measured after the steps."""

    sender: int
    receiver: int
    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        return float(np.median(self.rates))


@dataclass(frozen=True)
class RanksProfile(Coded, Shown):
    """Where the steps of a distributed program spent their time.

    `stragglers` are ranks and links that hold the others up; in a run without any, one is named
    with at most the probability `false_alarm_rate`. Everything is of the steps that all ranks in
    `ranks` have; `missing` are ranks that wrote nothing.
    """

    world: int
    backend: str
    device: str
    ranks: tuple[RankParts, ...]
    collectives: tuple[Collective, ...] = ()
    links: tuple[Link, ...] = ()
    layers: tuple[LayerTimes, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    what_ifs: tuple[WhatIf, ...] = ()
    path: tuple[PathPart, ...] = ()
    overhead: Estimate | None = None
    clock_error_s: float = 0.0
    missing: tuple[int, ...] = ()
    notes: tuple[Note, ...] = ()
    false_alarm_rate: float = FALSE_ALARMS
    folder: str = ""

    schema = 1

    @property
    def step_s(self) -> float:
        """The median seconds of a step."""
        return float(np.median([value for each in self.ranks for value in each.step_s]))

    @property
    def steps(self) -> int:
        return len(self.ranks[0].step_s) if self.ranks else 0

    @property
    def is_inconclusive(self) -> bool:
        """Whether there are too few steps to name any rank."""
        return len(self.ranks) > 1 and self.steps < steps_needed(len(self.ranks))

    def share(self, part: str) -> float:
        """Return the share of a part in the steps of all ranks."""
        return float(np.mean([each.share(part) for each in self.ranks])) if self.ranks else 0.0


def result_of(folder: Path) -> RanksProfile:
    """Return what the files in a folder tell; of ranks that ended early, what they have written."""
    return profile_of(read_folder(folder), folder=str(folder))


def profile_of(records: Sequence[RankRecord], *, folder: str = "") -> RanksProfile:
    """Return what some ranks have recorded as one result."""
    world = records[0].world
    missing = tuple(sorted(set(range(world)) - {each.rank for each in records}))
    present = [each for each in records if each.steps]
    timeline = align(present)
    numbers = timeline.common
    ranks = tuple(_parts_of(each, timeline, numbers) for each in present)
    parts = {each.rank: {part: each.seconds(part) for part in PARTS} for each in ranks}
    layers = _layers_of(present, numbers)
    links = _links_of(present)
    head = records[0].head
    found = RanksProfile(
        world, head.get("backend", ""), head.get("device", "cpu"), ranks, missing=missing
    )
    notes = list(_notes(records, found, timeline))
    what_ifs: list[WhatIf] = []
    stragglers: list[Straggler] = []
    path: list[PathPart] = []
    if numbers:
        stragglers, what_ifs, path = _conclusions(
            found, timeline, numbers, parts, layers, links, notes
        )
    return RanksProfile(
        found.world,
        found.backend,
        found.device,
        ranks,
        tuple(_collectives_of(present, timeline, len(numbers))),
        links,
        tuple(_imbalance(layers)),
        tuple(stragglers),
        tuple(what_ifs),
        tuple(path),
        _overhead(present),
        timeline.clock_error_us * US,
        missing,
        tuple(notes),
        folder=folder,
    )


def _conclusions(
    found: RanksProfile,
    timeline: Timeline,
    numbers: Sequence[int],
    parts: Mapping[int, Mapping[str, Array]],
    layers: Mapping[int, Mapping[str, Array]],
    links: Sequence[Link],
    notes: list[Note],
) -> tuple[list[Straggler], list[WhatIf], list[PathPart]]:
    step_s = found.step_s
    # Half of the allowed false alarms are for ranks, half for links.
    half = FALSE_ALARMS / 2
    stragglers = find_stragglers(parts, step_s, layers=layers, false_alarms=half)
    rates = {(each.sender, each.receiver): each.rates for each in links}
    stragglers += find_slow_links(rates, found.share("exposed"), false_alarms=half)
    rng = np.random.default_rng(0)
    named = dict.fromkeys(each.rank for each in stragglers if each.cause != "link")
    what_ifs = [without_rank(timeline, numbers, rank, rng=rng) for rank in named]
    shares = {
        rank: _work_shares({part: float(value.sum()) for part, value in each.items()})
        for rank, each in parts.items()
    }
    path, fidelity = critical_path(timeline, numbers, shares)
    if path and abs(fidelity - 1) > FIDELITY:
        words = f"replayed steps take {fidelity:.2f} of the measured ones; doubt path and what-if"
        notes.append(Note(words, "replay-differs"))
    return stragglers, [each for each in what_ifs if each is not None], path


def _work_shares(parts: Mapping[str, float]) -> dict[str, float]:
    work = {
        "compute": parts["compute"] + parts["hidden"],
        "input": parts["input"],
        "host": parts["host"],
    }
    total = sum(work.values()) or 1.0
    return {name: value / total for name, value in work.items()}


def _parts_of(record: RankRecord, timeline: Timeline, numbers: Sequence[int]) -> RankParts:
    steps = [timeline.steps[record.rank][number] for number in numbers]
    rows = [split(step, timeline.collectives) for step in steps]
    columns = {part: tuple(row[part] * US for row in rows) for part in PARTS}
    return RankParts(
        record.rank,
        str(record.head.get("host", "")),
        tuple(step.duration * US for step in steps),
        **columns,
        end=record.end,
        nbytes=record.nbytes,
        own_share=record.own_share,
    )


def _layers_of(
    records: Sequence[RankRecord], numbers: Sequence[int]
) -> dict[int, dict[str, Array]]:
    """Return the seconds of each layer in the common steps, where a rank has them."""
    found = {}
    for record in records:
        by_number = {each.number: each.layers for each in record.steps}
        rows = [by_number[number] for number in numbers]
        if record.layers and rows:
            # Layers are found when the model is first called: the first step may have no row.
            width = len(record.layers)
            table = np.array([row if len(row) == width else (0,) * width for row in rows])
            found[record.rank] = dict(zip(record.layers, (table * US).T, strict=True))
    return found


def _imbalance(layers: Mapping[int, Mapping[str, Array]]) -> Iterator[LayerTimes]:
    if not layers:
        return
    for path in next(iter(layers.values())):
        if all(path in each for each in layers.values()):
            yield LayerTimes(path, tuple(float(np.median(each[path])) for each in layers.values()))


def _collectives_of(
    records: Sequence[RankRecord], timeline: Timeline, steps: int
) -> Iterator[Collective]:
    bare: dict[Site, list[float]] = {}
    for record in records:
        for place, seconds in record.ceilings:
            bare.setdefault(record.sites[place], []).append(seconds)
    for site, times in transfers_by_site(timeline).items():
        alone = bare.get(site)
        yield Collective(
            site.kind.strip("_"),
            site.group,
            site.ranks,
            site.nbytes,
            site.dtype,
            len(times) / max(1, steps),
            float(np.median(times)) * US,
            max(alone) if alone else None,
        )


def _links_of(records: Sequence[RankRecord]) -> tuple[Link, ...]:
    found: dict[tuple[int, int], list[float]] = {}
    for record in records:
        for sender, receiver, rate in record.links:
            found.setdefault((sender, receiver), []).append(rate)
    return tuple(Link(*pair, tuple(rates)) for pair, rates in sorted(found.items()))


def _overhead(records: Sequence[RankRecord]) -> Estimate | None:
    """Return the time of a recorded step over that of another one."""
    pairs = [each.overhead for each in records if each.overhead]
    if not pairs or min(map(len, pairs)) < FEWEST:
        return None
    count = min(map(len, pairs))
    # A step takes as long as that of the slowest rank.
    slowest = np.max([each[:count] for each in pairs], axis=0)
    return estimate_ratio(np.log(slowest[:, 1] / slowest[:, 0]).tolist(), 0.05)


def _notes(
    records: Sequence[RankRecord], found: RanksProfile, timeline: Timeline
) -> Iterator[Note]:
    for rank in found.missing:
        yield Note(f"rank {rank} wrote nothing", "rank-missing", f"rank {rank}")
    for record in records:
        subject = f"rank {record.rank}"
        last = record.steps[-1].number + 1 if record.steps else 0
        if not record.end:
            words = f"{subject} did not come to its end; its last step is {last}"
            yield Note(words, "rank-died", subject)
        elif record.end != "finished":
            yield Note(f"{subject} failed after {last} steps: {record.end}", "rank-failed", subject)
        for stall in record.stalls:
            yield Note(_stall_words(subject, stall), "rank-stalled", subject)
        if record.head.get("is_cut"):
            words = f"{subject} recorded {last} steps, which fill its file; full=True keeps all"
            yield Note(words, "file-full", subject)
    unmatched = [each for each in timeline.collectives.values() if not each.is_complete]
    if unmatched and all(each.end == "finished" for each in records):
        words = f"{len(unmatched)} collectives were not seen on all of their ranks"
        yield Note(words, "not-matched")
    if found.device != "cpu":
        words = "on devices, times are those of the host, and were never tried with several ranks"
        yield Note(words, "not-tried")
    if found.steps and found.is_inconclusive:
        needed = steps_needed(len(found.ranks))
        words = f"{found.steps} steps are too few to name a rank; it takes {needed} or more"
        yield Note(words, "few-steps")
    if timeline.clock_error_us * US > FLOOR * (found.step_s if found.steps else 1.0):
        words = f"clocks of ranks agree within {timeline.clock_error_us / 1000:.2g} ms only"
        yield Note(words, "clocks-apart")


def _stall_words(subject: str, stall: Mapping[str, Any]) -> str:
    doing = f" in {stall['where']}" if stall.get("where") else ""
    waits = f", waiting for {stall['collective']}" if stall.get("collective") else ""
    return (
        f"{subject} stood still for {stall['seconds']:.0f} s at step {stall['step']}{doing}{waits}"
    )
