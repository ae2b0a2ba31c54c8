"""Alarms of a history: a shift is a suspicion; only measuring both commits again confirms it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple

import numpy as np

from tinytorch.codec import Coded
from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.measure.samples import MAD_TO_SIGMA
from tinytorch.records.change_points import find_change_points
from tinytorch.records.gate import AnyPath, run_gate
from tinytorch.records.gate_result import (
    PASSED,
    REGRESSION,
    SEVERITY,
    GateResult,
    TargetResult,
)
from tinytorch.records.history import KIND, LATENCY, Trend, trends
from tinytorch.records.settings import GateSettings
from tinytorch.records.store import RecordStore, open_store

# ---------------------------------------------------------------- a suspicion: what the last values
# of a history do not exclude
#
# A suspicion costs a measurement and is never shown as a finding, so it may be wrong often; what it
# must not do is miss. Hence the last three commits are suspicious unless their mean excludes the
# slowdown that is looked for; one or two of them only if they stand out.

RECENT_COMMITS = 3
"""Within so many commits a slowdown of the size that is looked for is to be found."""
REFERENCE_COMMITS = 30
"""Commits before those that the level is taken from, at most."""
LEAST_REFERENCE = 5
MISSED_Z = 1.645
"""A slowdown of the size that is looked for escapes the last three commits in 5% of cases."""
OUTLIER_Z = 2.5
LEAST_SHARE = 0.25
"""A shift below this share of the size that is looked for is no suspicion, whatever the noise."""
SEARCHED_COMMITS = 60
"""The newest commits, in which change points are looked for."""

SHIFT, CHANGE_POINT = "shift", "change point"


class Shift(NamedTuple):
    """A shift of a level: the index of the last value before it, its size, and what shows it."""

    before: int
    ratio: float
    reason: str


def suspicious_shift(values: Sequence[float], effect: float) -> Shift | None:
    """Return the slowdown that the last values of a history may hold, or None.

    `effect` is the slowdown that is looked for, as a share. The level before is that of the values
    that are not among the last three, or the last level but one of a change point.
    """
    series = np.log(np.asarray(values, dtype=np.float64)[-SEARCHED_COMMITS:])
    skipped = len(values) - len(series)
    before = len(series) - RECENT_COMMITS
    if before < LEAST_REFERENCE:
        return None
    reference = series[max(0, before - REFERENCE_COMMITS) : before]
    level, spread = float(np.median(reference)), _spread(reference)
    for count in range(RECENT_COMMITS, 0, -1):
        shift = float(series[-count:].mean()) - level
        error = spread * math.sqrt(1 / count + math.pi / 2 / len(reference))
        if shift > _threshold(math.log1p(effect), error, is_all=count == RECENT_COMMITS):
            return Shift(skipped + before - 1, math.exp(shift), SHIFT)
    return _recent_change_point(np.exp(series), effect, skipped)


def _threshold(effect: float, error: float, *, is_all: bool) -> float:
    if is_all:
        return max(LEAST_SHARE * effect, effect - MISSED_Z * error)
    return max(effect / 2, OUTLIER_Z * error)


def _spread(values: np.ndarray) -> float:
    """Return the standard deviation that most of the values have."""
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _recent_change_point(values: np.ndarray, effect: float, skipped: int) -> Shift | None:
    """Return a slowdown that a change point shows in the newest level, while that is young."""
    changes = find_change_points(values)
    if not changes or not changes[-1].ratio:
        return None
    last = changes[-1]
    is_young = len(values) - last.index <= 2 * LEAST_REFERENCE
    if not is_young or last.ratio is None or last.ratio < 1 + effect / 2:
        return None
    return Shift(skipped + last.index - 1, last.ratio, CHANGE_POINT)


@dataclass(frozen=True)
class Suspicion(Coded):
    """A slowdown of a target that its history does not exclude; nothing was measured again yet.

    `before` and `after` are commits: the last one of the level before, and the newest. `commits`
    are those in between and the newest, in the order of the history.
    """

    target: str
    before: str
    after: str
    ratio: float
    reason: str
    commits: tuple[str, ...]
    machine: str = ""


def suspicion_in(trend: Trend, effect: float) -> Suspicion | None:
    """Return what the end of a trend makes suspicious, by commit.

    Several records of one commit count as one, by their median. Records without a commit, or of
    one with changed files, are left out: such code cannot be measured again.
    """
    points = [each for each in trend.points if each.commit and not each.commit_has_changes]
    commits, values = [], []
    for commit, group in groupby(points, key=lambda point: point.commit):
        commits.append(str(commit))
        values.append(float(np.median([point.value for point in group])))
    found = suspicious_shift(values, effect) if values and min(values) > 0 else None
    if found is None:
        return None
    rest = tuple(commits[found.before + 1 :])
    before, after = commits[found.before], commits[-1]
    if before == after:  # a commit that was gone back to
        return None
    name, machine = trend.key.name, trend.key.machine
    return Suspicion(name, before, after, found.ratio, found.reason, rest, machine)


def suspicions(
    store: RecordStore, effect: float, targets: Iterable[str] = ()
) -> tuple[tuple[Suspicion, ...], tuple[str, ...]]:
    """Return the suspicions about some targets, or all that a gate has measured, and their names.

    Each machine has a history of its own; the largest suspicion about a target counts.
    """
    names = list(targets) or list(dict.fromkeys(each.key.name for each in store.series(kind=KIND)))
    found: list[Suspicion] = []
    for name in names:
        its = [
            suspicion_in(each, effect) for each in trends(store.find(kind=KIND, name=name), LATENCY)
        ]
        found += sorted(filter(None, its), key=lambda each: each.ratio)[-1:]
    return tuple(found), tuple(names)


# ---------------------------------------------------------------- confirmed, or not


@dataclass(frozen=True)
class Confirmations(Coded):
    """What measuring again said about each suspicion; `targets` are all that were looked at."""

    targets: tuple[str, ...]
    suspicions: tuple[Suspicion, ...]
    results: tuple[TargetResult, ...]
    effect: float
    notes: tuple[str, ...] = ()

    also_written = ("verdict", "summary", "targets", "effect", "notes")
    renames: ClassVar = {}

    @property
    def verdict(self) -> str:
        """The worst verdict; without a suspicion there is nothing to say against a pass."""
        found = (each.verdict for each in self.results)
        return min(found, key=SEVERITY.index, default=PASSED)

    @property
    def confirmed(self) -> tuple[tuple[Suspicion, TargetResult], ...]:
        """The alarms: suspicions that measuring again has confirmed."""
        pairs = zip(self.suspicions, self.results, strict=True)
        return tuple(pair for pair in pairs if pair[1].verdict == REGRESSION)

    @property
    def as_gate(self) -> GateResult:
        """The results as those of a gate, for what shows one row per target."""
        return GateResult("the history", "the newest commits", self.results, self.notes)

    @property
    def summary(self) -> str:
        """Count what was found."""
        if not self.suspicions:
            things = "1 target" if len(self.targets) == 1 else f"{len(self.targets)} targets"
            return f"no suspicion in the history of {things}"
        open_ones = sum(each.verdict == INCONCLUSIVE for each in self.results)
        counts = f"{len(self.confirmed)} of {len(self.suspicions)} suspicions confirmed"
        return f"{counts}, {open_ones} inconclusive" if open_ones else counts


def confirm_suspicions(
    settings: GateSettings,
    *,
    folder: AnyPath = ".",
    store: AnyPath | None = None,
    save: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    on_result: Callable[[TargetResult], None] | None = None,
) -> Confirmations:
    """Look for slowdowns in the history, and measure both commits of each again, in turns.

    The slowdown that is looked for is the tolerance of the settings. Where the history does not
    exclude it, the last commit before and the newest one are checked out, each into a worktree of
    its own, made ready by `setup`, and compared as in any gate. The line is drawn at half of the
    tolerance: identical code stays below it, and what is as slow as the tolerance lies above.
    """
    with open_store(store) as opened:
        found, names = suspicions(opened, settings.tolerance, settings.targets)
    if not names:
        raise SettingError(
            "the history has no records of a gate; `tinytorch gate --against REF` adds one per "
            "target and commit"
        )
    results: dict[Suspicion, TargetResult] = {}
    notes: list[str] = []
    for pair in dict.fromkeys((each.before, each.after) for each in found):
        some = [each for each in found if (each.before, each.after) == pair]
        gate = run_gate(
            pair[0],
            settings.changed(
                targets=tuple(each.target for each in some), tolerance=settings.tolerance / 2
            ),
            candidate=pair[1],
            folder=folder,
            store=store,
            save=save,
            seed=seed,
            progress=progress,
            on_result=on_result,
        )
        results |= dict(zip(some, gate.results, strict=True))
        notes += gate.notes
    ordered = tuple(results[each] for each in found)
    return Confirmations(names, found, ordered, settings.tolerance, tuple(dict.fromkeys(notes)))
