"""Attempt: a stack of transforms that was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinytorch.comparison.comparison import Comparison
from tinytorch.tuning.objectives import Measured, measured_by
from tinytorch.workloads.plan import Plan

__all__ = [
    "ACCURACY_INCONCLUSIVE",
    "BETTER",
    "BROKEN",
    "FAILED",
    "INACCURATE",
    "IN_MEMORY",
    "NOTHING_TO_DO",
    "NOT_SHOWN",
    "NOT_TRIED",
    "NO_GAIN",
    "OUTCOMES",
    "RELOADED",
    "TIME_IS_UP",
    "WORSE",
    "Attempt",
]

BETTER, NO_GAIN, WORSE, NOT_SHOWN = "better", "no gain", "worse", "not shown"
ACCURACY_INCONCLUSIVE = "accuracy inconclusive"
INACCURATE, BROKEN, FAILED = "inaccurate", "broken", "failed"
NOTHING_TO_DO, NOT_TRIED = "nothing to do", "not tried"
OUTCOMES = {
    BETTER: "shown to be better at the goal, and as good",
    NO_GAIN: "as good, and no better at the goal",
    WORSE: "as good, and worse at the goal",
    NOT_SHOWN: "as good; nothing is shown about the goal",
    ACCURACY_INCONCLUSIVE: "too few examples to tell whether accuracy is kept: timed, never ranked",
    INACCURATE: "accuracy is worse than the margin allows, or outputs are too far off: never timed",
    BROKEN: "gives outputs that cannot stand in for the baseline's: never ranked",
    FAILED: "could not be carried out",
    NOTHING_TO_DO: "the plan is empty",
    NOT_TRIED: "nobody tried",
}
"""Outcome -> what it means."""
TIME_IS_UP = "the budget of"
"""How the reason begins where there was no time to try."""
RELOADED, IN_MEMORY = "reloaded", "in memory"
"""Which model a confirmation is of: one that was saved and loaded, or the one that was made."""
ACCEPTABLE = frozenset({BETTER, NO_GAIN, WORSE, NOT_SHOWN})


@dataclass(frozen=True)
class Attempt:
    """Entries of the catalog, carried out in this order, and what came of it.

    `comparison` is with the baseline, `against_best` with the best stack so far, by time alone;
    `measured` is what the first one says. `seconds` is what all of it took, planning included.
    `confirmed_on` is RELOADED or IN_MEMORY for a confirmation, and empty otherwise.
    """

    stack: tuple[str, ...]
    outcome: str
    reason: str
    plans: tuple[Plan, ...] = ()
    comparison: Comparison | None = None
    against_best: Comparison | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    confirmed_on: str = ""

    @property
    def name(self) -> str:
        """The stack in one line."""
        return " + ".join(self.stack)

    @property
    def lacked_time(self) -> bool:
        """Whether it was not tried because the time was up."""
        return self.outcome == NOT_TRIED and self.reason.startswith(TIME_IS_UP)

    @property
    def is_acceptable(self) -> bool:
        """Whether it is as good as the baseline, whatever its speed."""
        return self.outcome in ACCEPTABLE

    @property
    def changes_process(self) -> tuple[str, ...]:
        """What its model sets for the whole process, each once; nothing for most."""
        return tuple(dict.fromkeys(x.changes_process for x in self.plans if x.changes_process))

    @property
    def measured(self) -> Measured:
        """What it is judged by; all None where it was never compared."""
        return measured_by(self.comparison) if self.comparison else Measured()

    @property
    def once_s(self) -> float | None:
        """Seconds that it needs once before it runs at speed; None where it was never timed."""
        if self.comparison is None:
            return None
        return sum(each.seconds for each in self.comparison.preparations[1])

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return {
            "stack": list(self.stack),
            "outcome": self.outcome,
            "reason": self.reason,
            "measured": self.measured.to_dict(),
            "plans": [each.to_dict() for each in self.plans],
            "comparison": self.comparison and self.comparison.to_dict(),
            "against_best": self.against_best and self.against_best.to_dict(),
            "seconds": self.seconds,
            "notes": list(self.notes),
            "confirmed_on": self.confirmed_on,
            "changes_process": list(self.changes_process),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Attempt:
        """Give back what :meth:`to_dict` wrote; conclusions are drawn again."""
        comparison, against = fields["comparison"], fields["against_best"]
        return cls(
            stack=tuple(fields["stack"]),
            outcome=fields["outcome"],
            reason=fields["reason"],
            plans=tuple(Plan.from_dict(each) for each in fields["plans"]),
            comparison=comparison and Comparison.from_dict(comparison),
            against_best=against and Comparison.from_dict(against),
            seconds=fields["seconds"],
            notes=tuple(fields["notes"]),
            confirmed_on=fields.get("confirmed_on", ""),
        )
