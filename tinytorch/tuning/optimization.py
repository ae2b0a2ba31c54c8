"""Optimization: everything that was tried on a workload, and what to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from tinytorch.codec import Coded
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import SettingError
from tinytorch.measure.environment import is_overloaded
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE
from tinytorch.models.workload import Workload
from tinytorch.showing import Shown
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BETTER,
    FAILED,
    NOT_TRIED,
    SKIPPED,
    Attempt,
    LimitCheck,
    Settings,
    check_limits,
)
from tinytorch.tuning.fresh_process import ProcessMemory
from tinytorch.tuning.ranking import choose, front_of, holds, outcome_at, value_at

if TYPE_CHECKING:
    from pathlib import Path

    from tinytorch.profiling.profile import Profile
    from tinytorch.tuning.saving import SavedModel


SCHEMA = 1


@dataclass(frozen=True)
class Contribution(Coded):
    """What one part of the best stack brings: the whole stack against the stack without it.

    `comparison` is None where the stack without it could not be measured; `reason` says why.
    """

    part: str
    comparison: Comparison | None
    reason: str = ""


@dataclass(frozen=True)
class AtSize(Coded):
    """One attempt against the baseline at one size of an axis, `batch` or `sequence`.

    The attempt is planned and carried out anew for inputs of this size. `comparison` is None where
    there is none; `reason` says why.
    """

    axis: str
    size: int
    attempt: str
    comparison: Comparison | None
    reason: str = ""

    @property
    def is_faster(self) -> bool:
        return self.comparison is not None and self.comparison.verdict == FASTER


@dataclass(frozen=True)
class Optimization(Coded, Shown):
    """The end of the loop: why it is slow, what was tried, what helps, with the proof.

    `confirmations` are fresh comparisons with the baseline, made after the choice: the best of many
    was chosen by chance as well, so what its attempt says about it is too good. `model` is the
    recommended one, or the one that was given where nothing helps; `profile` is of the model as it
    was. Both are None in what was read back from a file or a record. `target` is what the workload
    was loaded from, where that is known. A given model that `was_training` was left so; baseline
    and candidates are copies in evaluation mode. `at_sizes` has what the best attempts bring at
    other batch sizes or sequence lengths, if that was asked for. `process` is what fresh processes
    take with the baseline and with the saved result, where that was measured. `workload` is what
    was optimized.
    """

    name: str
    framework: str
    device: str
    settings: Settings
    advice: tuple[Advice, ...]
    attempts: tuple[Attempt, ...]
    confirmations: tuple[Attempt, ...] = ()
    ablation: tuple[Contribution, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    profile_summary: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    was_interrupted: bool = False
    notes: tuple[str, ...] = ()
    target: str = ""
    at_sizes: tuple[AtSize, ...] = ()
    was_training: bool = False
    process: ProcessMemory | None = None
    profile: Profile | None = field(default=None, repr=False, compare=False)
    model: Any = field(default=None, repr=False, compare=False)
    workload: Workload | None = field(default=None, repr=False, compare=False)

    schema = SCHEMA
    also_written = ("name", "front", "limit_checks")
    renames: ClassVar = {
        "profile_summary": "profile",
        "profile": None,
        "model": None,
        "workload": None,
    }

    # ------------------------------------------------------------ conclusions

    @cached_property
    def chosen(self) -> Attempt | None:
        """The best acceptable attempt that keeps to the limits.

        None where nothing helps, or where no fresh comparison confirms it.
        """
        goal, limits = self.settings.goal, self.settings.limits
        return choose(self.attempts, self.confirmations, goal=goal, limits=limits)

    @cached_property
    def confirmation(self) -> Attempt | None:
        """The fresh comparison of what was chosen; None where there was no time for one."""
        chosen = self.chosen
        return next((x for x in self.confirmations if chosen and x.stack == chosen.stack), None)

    @cached_property
    def recommended(self) -> Attempt | None:
        """What was chosen, as its fresh comparison shows it; None where nothing helps.

        Where no such comparison was made, it is the attempt itself.
        """
        return self.confirmation or self.chosen

    @cached_property
    def refuted(self) -> tuple[tuple[Attempt, Attempt], ...]:
        """What was the best when it was tried, and the fresh comparison that speaks against it."""
        goal, limits = self.settings.goal, self.settings.limits
        tried = {each.stack: each for each in self.attempts}
        return tuple(
            (tried[each.stack], each)
            for each in self.confirmations
            if each.stack in tried and not holds(each, goal=goal, limits=limits)
        )

    @cached_property
    def front(self) -> tuple[str, ...]:
        """Names of attempts that no other beats in time, memory, size and accuracy together.

        The baseline has the name "".
        """
        return front_of(self.attempts)

    @cached_property
    def limit_checks(self) -> tuple[LimitCheck, ...]:
        """Whether the recommended model (or the baseline) keeps each of the limits."""
        known = (*self.confirmations, *self.attempts)
        attempt = self.recommended or next((x for x in known if x.comparison), None)
        is_baseline = self.recommended is None
        return check_limits(attempt, self.settings.limits, of_baseline=is_baseline)

    @property
    def helped(self) -> tuple[Attempt, ...]:
        """Every attempt that improves the goal and passes the accuracy check."""
        return tuple(each for each in self.attempts if each.outcome == BETTER)

    @cached_property
    def inconclusive(self) -> tuple[Attempt, ...]:
        """What is better at the goal, or may be, with too few examples to tell its accuracy.

        The best at the goal first, but last what lost more than the margin on these examples. It
        is shown, and never recommended.
        """
        goal = self.settings.goal
        found = [
            each
            for each in self.ranked
            if each.outcome == ACCURACY_INCONCLUSIVE and each.comparison is not None
            if outcome_at(goal, each.comparison) in (BETTER, INCONCLUSIVE)
        ]
        return tuple(sorted(found, key=_lost_beyond_margin))

    @cached_property
    def was_judged(self) -> bool:
        """Whether anything is known: an attempt was judged, or all were skipped."""
        outcomes = {each.outcome for each in self.attempts}
        if outcomes - {FAILED, NOT_TRIED, SKIPPED}:
            return True
        return SKIPPED in outcomes and FAILED not in outcomes

    @cached_property
    def ranked(self) -> tuple[Attempt, ...]:
        """Every attempt, the best at the goal first; what was never ranked follows, as tried.

        Before that, what has an inconclusive accuracy, the best at the goal first.
        """
        best = self.chosen
        return tuple(sorted(self.attempts, key=lambda x: (x is not best, *self._rank(x))))

    def _rank(self, attempt: Attempt) -> tuple[int, float]:
        value = value_at(self.settings.goal, attempt.measured)
        is_open = attempt.outcome == ACCURACY_INCONCLUSIVE
        if value is None or not (attempt.is_acceptable or is_open):
            return 2, math.inf
        return int(is_open), value.value

    def predicted(self, attempt: Attempt) -> Gain | None:
        """Return the predicted speedup of an attempt, where advice has one."""
        gains = (x.predicted for x in self.advice if (x.entry,) == attempt.stack)
        return next((each for each in gains if each is not None), None)

    @property
    def lacked_time(self) -> tuple[Attempt, ...]:
        """Everything that was not tried because the time was up."""
        return tuple(each for each in self.attempts if each.lacked_time)

    @property
    def was_busy(self) -> bool:
        """Whether other programs used the machine while the recommended model was timed."""
        best = self.recommended
        if best is None or best.comparison is None:
            return False
        seen = best.comparison.environment
        return is_overloaded(seen.get("load_average"), seen.get("usable_cores", 0))

    def outcome_of(self, advice: Advice) -> Attempt | None:
        """Return the attempt that carries out this advice alone; None where there is none."""
        stack = (advice.entry,)
        return next((each for each in self.attempts if each.stack == stack), None)

    def attempt(self, name: str) -> Attempt:
        """Return one attempt by its name, such as "int8-dynamic + compiled-kernels"."""
        for each in self.attempts:
            if each.name == name:
                return each
        known = ", ".join(repr(each.name) for each in self.attempts)
        raise SettingError(f"nothing was tried under the name {name!r}; there are {known}")

    def save(
        self, path: str | Path, *, workload: Workload | None = None, target: str = ""
    ) -> SavedModel:
        """Write the recommended model to a folder, with how to load it and what was measured.

        `workload` is the one that was optimized, for a result that was read back; `target` is what
        it was loaded from, such as "file.py:factory", unless that is known.
        """
        from tinytorch.tuning.saving import save_result

        return save_result(self, path, workload=workload, target=target)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model as plain JSON data; of the profile, its summary."""
        best = self.recommended
        names = {
            "recommended": best and best.name,
            "inconclusive": [each.name for each in self.inconclusive],
        }
        return super().to_dict() | names


def _lost_beyond_margin(attempt: Attempt) -> bool:
    accuracy = attempt.comparison.accuracy if attempt.comparison else None
    return accuracy is not None and accuracy.difference < -accuracy.margin
