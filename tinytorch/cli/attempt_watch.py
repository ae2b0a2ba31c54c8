"""What somebody sees while things are tried: on a bar, or line by line."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinytorch.cli.console import Output, Progress

if TYPE_CHECKING:
    from tinytorch.tuning.attempt import Attempt

AGAINST = " against baseline"
BEST = " (best: "


class AttemptWatch:
    """Says what is being tried and what is the best so far.

    It is the progress of the loop, and hears of its attempts. Where no bar is drawn, each finished
    attempt is a line.
    """

    def __init__(
        self, output: Output, progress: Progress, *, goal: str, limits: Mapping[str, float]
    ) -> None:
        self._output, self._progress = output, progress
        self._goal, self._limits = goal, limits
        self._attempts: list[Attempt] = []

    def advance(self, steps: int = 1) -> None:
        """Count finished attempts."""
        self._progress.advance(steps)

    def describe(self, text: str) -> None:
        """Say what is being done and how good the best so far is, in the few letters of a bar."""
        doing = text.partition(BEST)[0].replace(AGAINST, "")
        best = self._best()
        self._progress.describe(f"{doing} ... best: {self._phrase(best)}" if best else doing)

    def hear(self, attempt: "Attempt") -> None:
        """Take note of a finished attempt; where no bar is drawn, say a line about it."""
        from tinytorch.tuning.attempt import ACCURACY_INCONCLUSIVE
        from tinytorch.tuning.attempt_records import is_from_before

        self._attempts.append(attempt)
        if sys.stderr.isatty():
            return
        words = f"{attempt.outcome}: {attempt.reason}"
        if attempt.comparison is not None:
            words = self._phrase(attempt, is_whole=True)
            if attempt.outcome == ACCURACY_INCONCLUSIVE:
                words += f"; {attempt.outcome}: {attempt.reason}"
        before = ", from an earlier run" if is_from_before(attempt) else ""
        best = self._best()
        known = f"; best: {best.name}, {self._phrase(best)}" if best else ""
        self._output.say(f"{attempt.name}: {words}{before}{known}")

    def _best(self) -> "Attempt | None":
        from tinytorch.tuning.ranking import best_of

        return best_of(self._attempts, goal=self._goal, limits=self._limits)

    def _phrase(self, attempt: "Attempt", *, is_whole: bool = False) -> str:
        """Say what became of the goal; the interval, in brackets, where there is room."""
        from tinytorch.reporting.attempt_words import attempt_phrases

        phrase = attempt_phrases(attempt, self._goal)[0]
        return phrase if is_whole else phrase.partition(" (")[0]
