"""The model as it is: what it gives, how good it is and what it needs, each found out once."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.evidence import outputs_and_seconds, outputs_of, scores_of
from tinytorch.comparison.outputs import attention_mask_of, compare_outputs
from tinytorch.comparison.resources import Resources, measure_resources
from tinytorch.comparison.sides import WorkloadSide
from tinytorch.errors import ModelError, SettingError
from tinytorch.workloads.workload import Workload

__all__ = ["BASELINE", "Baseline"]

BASELINE = "baseline"
QUICK_S = 2.0
"""Scores that take no longer are computed twice, to see whether they stay the same."""

Arrays = tuple[npt.NDArray[Any], ...]


class Baseline:
    """A workload's own outputs and scores, and the seconds of a call; `notes` are doubts about it.

    Raises ModelError where nothing could tell whether a candidate is as good.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.notes: list[str] = []
        self.mask = attention_mask_of(workload)
        self._resources: Resources | None = None
        side = WorkloadSide(workload, name=BASELINE)
        with side.environment():
            self.outputs, self.call_s = outputs_and_seconds(side)
            started = perf_counter()
            self.scores, self.metric = self._score(side)
            is_quick = perf_counter() - started < QUICK_S
            self._check_repeats(side)
            if is_quick and self.scores is not None:
                self._check_scores_repeat(side)

    def side(self, rng: np.random.Generator) -> WorkloadSide:
        """Give a side of a comparison for which slow calls need not be made again."""
        return WorkloadSide(
            replace(self.workload, evaluate=None),
            name=BASELINE,
            rng=rng,
            known_outputs=self.outputs,
            known_call_s=self.call_s,
            known_resources=self._resources,
        )

    def resources(self, side: WorkloadSide, *, call_s: float) -> Resources:
        """Measure what it needs, after this side was timed; a large one is written only once."""
        if self._resources is None:
            with side.environment():
                # A side that is not built anew has called the model itself.
                self._resources = measure_resources(
                    side.workload,
                    preparations=side.preparations,
                    was_called=not side.can_rebuild,
                    call_s=call_s,
                )
        return self._resources

    def _score(self, side: WorkloadSide) -> tuple[npt.NDArray[Any] | None, str]:
        try:
            scores, metric = scores_of(side, side)
            if scores is not None:
                compare_accuracy(scores, scores)  # refuses what no candidate could be held against
        except (ModelError, SettingError) as error:
            raise ModelError(
                f"the model as it is {str(error).removeprefix(BASELINE).strip()}; "
                "mend evaluate, or leave it out and outputs decide"
                if isinstance(error, ModelError)
                else f"evaluate is of no use for the model as it is: {error}"
            ) from error
        return scores, metric

    def _check_repeats(self, side: WorkloadSide) -> None:
        """Without scores only outputs can tell, and they must be the same each time."""
        if not self.outputs or self._repeats(side):
            return
        if self.scores is None:
            raise ModelError(
                f"{self.workload.name} gives different results for the same inputs, and there is "
                "no evaluate: nothing can tell whether a candidate is as good; call model.eval(), "
                "or give an evaluate"
            )
        self.notes.append("the model gives different results for the same inputs; scores decide")

    def _repeats(self, side: WorkloadSide) -> bool:
        """Call it again, or twice a shorter call of the same layers, where the model knows one.

        Of what is drawn, a few tokens may be the same by chance: then it is called again as well.
        """
        model = self.workload.model
        shortened = getattr(model, "shortened_for_profile", None)
        shorter = shortened()[0] if shortened else model
        if shorter is not model:
            side.release()  # a device may have no room for copies of both
            short = WorkloadSide(replace(self.workload, model=shorter), name=BASELINE)
            is_same = compare_outputs(outputs_of(short), outputs_of(short)).is_identical
            if not is_same or not getattr(model, "is_drawn", False):
                return is_same
            short.release()
        again, seconds = outputs_and_seconds(side)
        self.call_s = min(self.call_s, seconds)  # the first call may have prepared something
        return compare_outputs(self.outputs, again).is_identical

    def _check_scores_repeat(self, side: WorkloadSide) -> None:
        """Say where scores are drawn anew: then they differ by more than what a candidate does."""
        again, _ = self._score(side)
        if not np.array_equal(np.asarray(self.scores), np.asarray(again)):
            self.notes.append(
                "evaluate gives different scores for the same model; let it use the same examples "
                "in the same order, with a fixed seed, or accuracy is judged by chance as well"
            )
