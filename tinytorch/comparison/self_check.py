"""A against A: what the comparer shows on this machine where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.comparison.compare import FLOOR, compare
from tinytorch.core.files import cache_folder, read_kept, write_kept
from tinytorch.errors import check_number
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.estimate import INCONCLUSIVE, SAME, Estimate, read_verdict
from tinytorch.models.targets import load_workload

SCHEMA = 1
TARGET = "mlp"
ENOUGH_TRIALS = 10
"""With fewer, a check does not replace one that has more."""


@dataclass(frozen=True)
class Trial(Coded):
    """One comparison of a thing with itself."""

    verdict: str
    ratio: Estimate
    seconds: float

    also_written = ("verdict", "ratio.value", "ratio.low", "ratio.high", "ratio.n")
    renames: ClassVar = {"ratio.value": "ratio", "ratio": None}

    @property
    def claimed(self) -> float:
        """The difference that the interval claims at least, as a share; 0 for none."""
        return max(0.0, self.ratio.low - 1, 1 / self.ratio.high - 1)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Trial:
        """Return what :meth:`to_dict` wrote; the ends of the ratio lie beside it."""
        ratio = Estimate.from_dict({**fields, "value": fields["ratio"]})
        return cls(read_verdict(fields["verdict"]), ratio, fields["seconds"])


@dataclass(frozen=True)
class SelfCheck(Coded):
    """Comparisons of a target with itself. `kept` says where the result lies, `obstacle` why not.

    `budget_s` is what each of them was allowed to take.
    """

    target: str
    trials: tuple[Trial, ...]
    fingerprint: str
    kept: str = ""
    budget_s: float = 0.0
    obstacle: str = ""

    schema = SCHEMA
    also_written = (
        *("target", "fingerprint", "false_alarms", "undecided", "floor", "largest_difference"),
        *("reach", "median_seconds"),
    )

    @property
    def is_kept(self) -> bool:
        return bool(self.kept)

    @property
    def false_alarms(self) -> int:
        return sum(trial.verdict not in (SAME, INCONCLUSIVE) for trial in self.trials)

    @property
    def undecided(self) -> int:
        return sum(trial.verdict == INCONCLUSIVE for trial in self.trials)

    @property
    def floor(self) -> float:
        """The minimum effect that can be resolved here: never below 0.5%.

        It is the largest that was claimed of identical code. Where trials were not decided, it is
        at least as far as intervals usually reach: smaller differences are not found here.
        """
        noise = self.reach if self.undecided else 0.0
        return max(FLOOR, noise, *(trial.claimed for trial in self.trials))

    @property
    def largest_difference(self) -> float:
        """The estimate that was farthest from 1, as a share."""
        return max(max(x, 1 / x) - 1 for x in (trial.ratio.value for trial in self.trials))

    @property
    def reach(self) -> float:
        """Return how far intervals reach from their estimate in the median, as a share."""
        return float(np.median([each.ratio.high / each.ratio.value - 1 for each in self.trials]))

    @property
    def median_seconds(self) -> float:
        return float(np.median([trial.seconds for trial in self.trials]))


def self_check(
    target: Any = None,
    *,
    trials: int = 20,
    budget_s: float = 2.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> SelfCheck:
    """Compare a target with itself repeatedly, and store the minimum effect of this machine.

    Without a target it is the zoo's `mlp`. Anything that :func:`compare` takes will do; what is not
    a target by name is not stored. A check of fewer trials, or with less time for each, does not
    replace a better one.
    """
    check_number("trials", trials, least=1)
    given = TARGET if target is None else target
    done = []
    for number in range(trials):
        found = compare(given, given, budget_s=budget_s, evidence=False, seed=seed + number)
        done.append(Trial(found.verdict, found.ratio, found.seconds_used))
        if progress:
            progress.advance()
    name = given if isinstance(given, str) else type(given).__name__
    fingerprint = describe_environment().fingerprint
    check = SelfCheck(name, tuple(done), fingerprint, budget_s=budget_s)
    return _keep(check) if isinstance(given, str) else check


def arrival(checks: int, budget_s: float) -> dict[str, Any]:
    """Return what a slot reports on arrival, for a process that was asked: A/A, and where it is.

    Nothing is stored: the minimum effect beside busy neighbours is not that of the machine.
    """
    found: dict[str, Any] = {"environment": describe_environment().to_dict()}
    if not checks:
        return found
    check = self_check(load_workload(TARGET), trials=checks, budget_s=budget_s)
    floor = check.floor if math.isfinite(check.floor) else None
    return found | {"floor": floor, "alarms": check.false_alarms, "checks": len(check.trials)}


def known_floor() -> float | None:
    """Return the minimum effect found by the self-check of this machine; None without one."""
    check = _known(describe_environment().fingerprint)
    return None if check is None else check.floor


def _known(fingerprint: str) -> SelfCheck | None:
    try:
        return SelfCheck.from_dict(read_kept(_file(fingerprint)))
    except (ValueError, LookupError, TypeError):  # it can be checked again
        return None


def _keep(check: SelfCheck) -> SelfCheck:
    path = _file(check.fingerprint)
    obstacle = _why_not(check, _known(check.fingerprint), path)
    if obstacle:
        return replace(check, obstacle=obstacle)
    kept = replace(check, kept=str(path))
    problem = write_kept(path, **kept.to_dict())
    return replace(check, obstacle=problem) if problem else kept


def _why_not(check: SelfCheck, known: SelfCheck | None, path: Path) -> str:
    """Return why a check should not replace what is known about this machine, or ""."""
    if not math.isfinite(check.floor):
        return "most intervals are unbounded; increase the budget of a comparison"
    if known is None:
        return ""
    count, had = len(check.trials), len(known.trials)
    has_few = count < min(ENOUGH_TRIALS, had)
    is_short = check.budget_s < known.budget_s and had >= min(ENOUGH_TRIALS, count)
    if not has_few and not is_short:
        return ""
    return (
        f"the stored check has {had} trials of {known.budget_s:g} s, this one {count} of "
        f"{check.budget_s:g} s; remove {path} to replace it"
    )


def _file(fingerprint: str) -> Path:
    return cache_folder() / f"selfcheck-{fingerprint}.json"
