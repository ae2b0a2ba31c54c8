"""Trying a stack on a workload: plan, apply, check accuracy, and only then time it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pickle import PickleError
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.comparison.accuracy import (
    NOT_WORSE,
    AccuracyComparison,
    about_sample_size,
    compare_accuracy,
    is_equally_good,
)
from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.evidence import BASELINE, CANDIDATE, NO_EVALUATE
from tinytorch.comparison.outputs import OutputDifference, attention_mask_of, compare_outputs
from tinytorch.comparison.resources import Resources, measure_resources
from tinytorch.comparison.sides import Known, WorkloadSide
from tinytorch.errors import Failure, ModelError, SettingError, TinyTorchError, first_line
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.measure.interleaving import FEWEST
from tinytorch.measure.timing import time_limit
from tinytorch.models.workload import Workload, preparations_of, prepares_itself
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Plan, Risk
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BROKEN,
    DROPPED,
    FAILED,
    FRESH,
    IN_MEMORY,
    INACCURATE,
    NOT_TRIED,
    RELOADED,
    SKIPPED,
    TOO_SLOW,
    WORSE,
    Attempt,
    Settings,
)
from tinytorch.tuning.catalog import Entry, risk_of
from tinytorch.tuning.fresh_process import compare_in_fresh_process
from tinytorch.tuning.loading import load_optimized
from tinytorch.tuning.ranking import OBJECTIVE_OF, outcome_at
from tinytorch.tuning.saving import bytes_of, write_stack

# ---------------------------------------------------------------- accuracy check of a candidate
# against the baseline: by its scores, its outputs, or both

Explain = Callable[[], tuple[str, ...]]
"""Returns why different integers are due to rounding; empty where they are not."""


@dataclass(frozen=True)
class Check:
    """Outcome of the accuracy check; `doubt` is why a candidate is not accepted, or "".

    With `is_inconclusive`, the examples are too few to decide.
    """

    outputs: OutputDifference | None
    accuracy: AccuracyComparison | None = None
    doubt: str = ""
    notes: tuple[str, ...] = ()
    is_inconclusive: bool = False


def by_scores(
    accuracy: AccuracyComparison,
    outputs: OutputDifference | None,
    *,
    closeness: Callable[[], Check] | None = None,
) -> Check:
    """Check whether accuracy is kept.

    Too few examples do not decide against what computes the same function, but for rounding: there
    outputs decide, by `closeness`. An established loss outranks it.
    """
    if accuracy.verdict == NOT_WORSE or is_equally_good(
        accuracy, has_same_outputs=outputs is not None and outputs.is_identical
    ):
        return Check(outputs, accuracy)
    if accuracy.failed:
        return Check(outputs, accuracy, accuracy.evidence)
    means = f"{accuracy.metric} {accuracy.baseline_mean:.4g} to {accuracy.candidate_mean:.4g}"
    if accuracy.verdict != INCONCLUSIVE:
        return Check(outputs, accuracy, f"{means}: {accuracy.evidence}")
    close = closeness() if closeness is not None else None
    if close is not None and not close.doubt:
        note = f"{accuracy.metric} is inconclusive: {accuracy.evidence}; accepted by its outputs"
        return Check(outputs, accuracy, notes=(note, *close.notes))
    doubt = f"{means.removeprefix('accuracy ')}, {accuracy.evidence}; {accuracy.remedy}"
    return Check(outputs, accuracy, doubt, is_inconclusive=True)


def by_outputs(outputs: OutputDifference | None, *, most: float, explain: Explain) -> Check:
    """Check whether outputs are off by at most this share of the largest, without any scores.

    Integers must be equal, unless the model itself explains the differences.
    """
    share = outputs.equal_share if outputs else None
    if share is not None and share < 1:
        reasons = explain()
        doubt = (
            f"{1 - share:.2%} of the integers in its outputs differ; give an evaluate to check "
            "accuracy instead"
        )
        return Check(outputs, doubt="" if reasons else doubt, notes=reasons)
    error = outputs.max_relative_error if outputs else None
    if error is None:
        is_same = outputs is not None and outputs.is_identical
        doubt = "" if is_same else "its outputs are not numbers and cannot be compared"
        return Check(outputs, doubt=doubt)
    if error <= most:
        return Check(outputs)
    doubt = (
        f"output error {error:.2g} exceeds {most:g} of the largest; give an evaluate to check "
        "accuracy instead"
    )
    return Check(outputs, doubt=doubt)


# ---------------------------------------------------------------- the baseline: its outputs,
# scores and resources, each determined once

QUICK_S = 2.0
"""Scores that take no longer are computed twice, to see whether they stay the same."""

Arrays = tuple[npt.NDArray[Any], ...]


class Baseline:
    """A workload's own outputs and scores, and the seconds of a call, with `notes` about them.

    Raises ModelError where no candidate could be checked.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.notes: list[str] = []
        self.mask = attention_mask_of(workload)
        self.score_s = 0.0
        self._resources: Resources | None = None
        side = WorkloadSide(workload, name=BASELINE)
        with side.opened():
            self.outputs, self.call_s = side.outputs_and_seconds()
            started = perf_counter()
            self.scores, self.metric = self._score(side)
            self.score_s = perf_counter() - started
            is_quick = self.score_s < QUICK_S
            self._check_repeats(side)
            if is_quick and self.scores is not None:
                self._check_scores_repeat(side)

    def side(self, rng: np.random.Generator) -> WorkloadSide:
        """Return a side of a comparison for which slow calls need not be made again."""
        return WorkloadSide(
            replace(self.workload, evaluate=None),
            name=BASELINE,
            rng=rng,
            known=Known(self.outputs, self.call_s, self._resources),
        )

    def resources(self, side: WorkloadSide, *, call_s: float) -> Resources:
        """Measure what it needs, after this side was timed; a large one is written only once."""
        if self._resources is None:
            with side.opened():
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
            scores, metric = side.scores()
            if scores is not None:
                compare_accuracy(scores, scores)  # refuses what no candidate could be held against
        except (ModelError, SettingError) as error:
            raise ModelError(
                f"{error}; fix evaluate, or leave it out to check outputs instead"
                if isinstance(error, ModelError)
                else f"evaluate does not work for the baseline: {error}"
            ) from error
        return scores, metric

    def _check_repeats(self, side: WorkloadSide) -> None:
        """Without scores only outputs can tell, and they must be the same each time."""
        if not self.outputs or self._repeats(side):
            return
        if self.scores is None:
            raise ModelError(
                f"{self.workload.name} is not deterministic, and there is "
                "no evaluate: candidates cannot be checked; call model.eval(), "
                "or give an evaluate"
            )
        self.notes.append("the model is not deterministic; scores decide")

    def _repeats(self, side: WorkloadSide) -> bool:
        """Call it again, or twice a shorter call of the same layers, where the model knows one.

        Of what is drawn, a few tokens may be the same by chance: then it is called again as well.
        """
        model = self.workload.generating
        shorter = model.shortened_for_profile()[0] if model else None
        if model is not None and shorter is not model:
            side.release()  # a device may have no room for copies of both
            short = WorkloadSide(replace(self.workload, model=shorter), name=BASELINE)
            is_same = compare_outputs(short.outputs(), short.outputs()).is_identical
            if not is_same or not model.is_drawn:
                return is_same
            short.release()
        again, seconds = side.outputs_and_seconds()
        self.call_s = min(self.call_s, seconds)  # the first call may have prepared something
        return compare_outputs(self.outputs, again).is_identical

    def _check_scores_repeat(self, side: WorkloadSide) -> None:
        """Note where scores are drawn anew: then they differ more than by the candidate."""
        again, _ = self._score(side)
        if not np.array_equal(np.asarray(self.scores), np.asarray(again)):
            self.notes.append(
                "evaluate is not deterministic; use the same examples "
                "in the same order, with a fixed seed"
            )


# ---------------------------------------------------------------- trying a stack on a workload:
# plan, apply, check accuracy, and only then time it

PRECISION = 0.05
"""Intervals are narrowed to this share where time allows: candidates are ranked by their values."""
CANNOT_BE_JUDGED = "skipped: needs an evaluate, because it computes another function"

MARGIN = "--max-accuracy-drop"
"""What sets the margin of an `evaluate`."""
FOR_THE_BEST = Failure("measured only for the recommended stack", "only-of-the-best")
NOT_RELOADED = "confirmed on the model in memory, not on one that was saved and loaded: {reason}"
NOT_FRESH = "confirmed in the process that searched, not in a fresh one: {reason}"
LARGER = "give a larger time budget"
HOPELESS, BEYOND_DOUBT = 5.0, 20.0
"""A candidate whose calls take so many times those of the baseline is dropped, where it has to be
faster; with the second after fewer of them. No other part of a stack brings that much back."""
CALLS_TO_DROP = 3
"""So many calls of it must be that slow, after a first one that may have prepared something."""
LEAST_TO_DROP_S = 0.1
"""They must take so long together: on a busy machine short calls in a row may be preempted."""
LEAST_CALLS = 2 * FEWEST + 2
"""Calls of an attempt: one that is checked, one that warms up, and both sides in every round."""
Timing = tuple[float, int, Progress | None]
"""How long a comparison may take, its seed, and who watches."""


@dataclass(frozen=True)
class Built:
    """A stack that was carried out: the model, and the plans in their order."""

    stack: tuple[str, ...]
    model: Any
    plans: tuple[Plan, ...]


class SkippedError(Exception):
    """A transform of a stack whose plan is empty; it is no failure."""

    def __init__(self, reason: str, plans: Sequence[Plan]) -> None:
        super().__init__(reason)
        self.plans = tuple(plans)


def build_stack(
    workload: Workload, entries: Sequence[Entry], profile: Profile | None = None
) -> Built:
    """Carry out the transforms of all entries, one on what the other gave.

    Each plans on the model as it then is, and compiles it as if nothing had been compiled before.
    The profile is of the workload's own model, so only the first transform gets it.
    """
    _compile_anew()
    current, plans = workload, list[Plan]()
    for entry in entries:
        for transform in entry.transforms:
            try:
                plan = transform.plan(current, None if plans else profile)
            except SettingError as error:  # it needs what this workload does not have
                raise SkippedError(f"{type(transform).__name__}: {error}", plans) from error
            plans.append(plan)
            if plan.is_empty:
                raise SkippedError(_why_empty(plan), plans)
            current = replace(current, model=transform.apply(current, plan))
    return Built(tuple(each.name for each in entries), current.model, tuple(plans))


def _compile_anew() -> None:
    """Reset torch.compile, so that what follows compiles from scratch."""
    if "torch" in sys.modules:
        from tinytorch.tuning.saving_torch import forget_compiled

        forget_compiled()


@dataclass(frozen=True)
class Slowness:
    """Calls of a candidate, the first included, and the ratio of medians without it."""

    ratio: float
    calls: int

    def __str__(self) -> str:
        return f"dropped after {self.calls} calls: {self.ratio:.3g}x slower"


def slowness_of(
    candidate: Callable[[], float],
    baseline: Callable[[], float],
    *,
    hopeless: float,
    is_prepared: bool = False,
) -> Slowness | None:
    """Call both in turns and return how much slower the candidate is; None where it may still win.

    Both functions make a call and return its seconds. The candidate was called once before: that
    call may have compiled or warmed up, and does not count. One call that is not `hopeless`, by the
    one of the baseline next to it, is enough to go on. Beyond doubt, fewer calls are needed; of
    what prepares itself in its first calls, the third is the first at full speed.
    """
    ours, theirs = list[float](), list[float]()
    needed = 2 if is_prepared else 1
    while len(theirs) < CALLS_TO_DROP or sum(theirs) < LEAST_TO_DROP_S:
        ours.append(baseline())
        theirs.append(candidate())
        if theirs[-1] <= hopeless * ours[-1]:
            return None
        is_far_off = min(theirs) > BEYOND_DOUBT / HOPELESS * hopeless * max(ours)
        if is_far_off and len(theirs) >= needed and sum(theirs) >= LEAST_TO_DROP_S:
            break
    return Slowness(median(theirs) / median(ours), 1 + len(theirs))


class DroppedError(Exception):
    """A candidate that is too slow to go on with."""


class Trials:
    """Everything that trying stacks on one workload needs, the baseline's own outputs and scores.

    These are computed once. Nothing that goes wrong in a candidate gets out, but for interrupts.
    """

    start_s = math.inf
    """About how long a fresh process takes to load the workload; inf: none is to be started."""

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        *,
        profile: Profile | None = None,
        target: str = "",
    ) -> None:
        self.workload, self.settings, self.profile = workload, settings, profile
        self._target = target
        self._explanations: dict[bytes, tuple[str, ...]] = {}
        self._baseline = Baseline(workload)
        self.notes = [*self._baseline.notes, *self._about_examples()]

    def build(self, entries: Sequence[Entry]) -> Built:
        """Carry out a stack."""
        return build_stack(self.workload, entries, self.profile)

    def model_of(self, built: Built) -> Any:
        """Return the model of a stack that was carried out."""
        return built.model

    def can_judge(self, entries: Sequence[Entry]) -> bool:
        """Return whether a stack can be checked: an approximate one needs scores."""
        return self._baseline.scores is not None or risk_of(entries) != "approximate"

    @property
    def check_s(self) -> float:
        """Seconds that an attempt takes at least: so few calls cannot be spared, and scores."""
        return LEAST_CALLS * self._baseline.call_s + self._baseline.score_s

    def _about_examples(self) -> list[str]:
        """Return a note, before anything is tried, if the examples are too few for the margin."""
        scores, margin = self._baseline.scores, self.settings.max_accuracy_drop
        if scores is None:
            return []
        note = about_sample_size(scores, margin=margin, setting=MARGIN)
        return [note] if note else []

    def attempt(
        self,
        entries: Sequence[Entry],
        *,
        budget_s: float,
        limit_s: float | None = None,
        best: Built | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[Attempt, Built | None]:
        """Try a stack for about `budget_s`; return the attempt, and the model if it passes.

        Single calls and energy are measured only of what is chosen in the end, by `confirm`.
        `limit_s` is for planning and applying. With a `best` stack so far, both are compared too,
        where it is not worse than the baseline. Where only what is faster is of use, a candidate
        whose first calls are hopelessly slow is dropped before it is judged or timed.
        """
        return self._tried(entries, None, best, limit_s, (budget_s, seed, progress), is_final=False)

    def confirm(
        self,
        entries: Sequence[Entry],
        built: Built | None = None,
        *,
        budget_s: float,
        limit_s: float | None = None,
        is_fresh: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[Attempt, Built | None]:
        """Check and time a stack once more, after it was chosen for what its attempt said.

        The best of many is overestimated, since chance helped to choose it. Nothing of the
        attempt is used here but the model, where it was `built` already. What is checked, timed and
        given is that model after saving and loading, where that works (`Attempt.confirmed_on`); it
        is timed in a process of its own if `is_fresh`.
        """
        timing = budget_s, seed, progress
        return self._tried(entries, built, None, limit_s, timing, is_final=True, is_fresh=is_fresh)

    def _tried(
        self,
        entries: Sequence[Entry],
        built: Built | None,
        best: Built | None,
        limit_s: float | None,
        timing: Timing,
        *,
        is_final: bool,
        is_fresh: bool = False,
    ) -> tuple[Attempt, Built | None]:
        started = perf_counter()
        stack = tuple(each.name for each in entries)
        attempt = Attempt(stack, NOT_TRIED, "")
        try:
            if not self.can_judge(entries):
                return replace(attempt, reason=CANNOT_BE_JUDGED), None
            if built is None:
                with time_limit(limit_s, f"planning {attempt.name}", remedy=LARGER):
                    built = Trials.build(self, entries)
            attempt = replace(attempt, plans=built.plans, setup_s=perf_counter() - started)
            risk = risk_of(entries)
            if is_final:
                attempt, built = self._confirmed(
                    attempt, built, timing, limit_s, risk=risk, is_fresh=is_fresh
                )
            else:
                attempt = self._judged(attempt, built, best, timing, risk=risk)
        except SkippedError as error:
            attempt = replace(attempt, outcome=SKIPPED, reason=str(error), plans=error.plans)
        except DroppedError as error:
            attempt = replace(attempt, outcome=DROPPED, reason=str(error), code=TOO_SLOW)
        except Exception as error:  # what a candidate does wrong must not end the search
            # Our own words need no class before them.
            reason = first_line(error, with_class=not isinstance(error, TinyTorchError))
            attempt = replace(attempt, outcome=FAILED, reason=reason)
        attempt = replace(attempt, seconds=perf_counter() - started)
        return attempt, built if attempt.is_acceptable else None

    def _confirmed(
        self,
        attempt: Attempt,
        built: Built,
        timing: Timing,
        limit_s: float | None,
        *,
        risk: Risk,
        is_fresh: bool,
    ) -> tuple[Attempt, Built]:
        """Judge a stack as it is after saving and loading; else the given one, with the reason."""
        started, notes = perf_counter(), tuple[str, ...]()
        with TemporaryDirectory(prefix="tinytorch-") as folder:
            path: Path | None = None
            try:
                built, path = self._delivered(built, Path(folder), limit_s)
            except Exception as error:  # whatever a model, a disk or a file may raise
                notes = (NOT_RELOADED.format(reason=_reason(error)),)
            attempt = replace(
                attempt,
                confirmed_on=RELOADED if path else IN_MEMORY,
                setup_s=attempt.setup_s + perf_counter() - started,
            )
            compared = None
            if path is not None and is_fresh:
                compared = partial(self._compared_afresh, path, limit_s)
            written = None if path is None else bytes_of(path)
            attempt = self._judged(
                attempt, built, None, timing, risk=risk, afresh=compared, file_bytes=written
            )
        return replace(attempt, notes=(*attempt.notes, *notes)), built

    def _delivered(self, built: Built, folder: Path, limit_s: float | None) -> tuple[Built, Path]:
        """Return a stack as it is after saving and loading, and what was saved."""
        once_s = sum(each.seconds for each in preparations_of(built.model))
        if limit_s is not None and once_s > limit_s:
            raise SettingError(f"preparing it once more takes {once_s:.0f} s")
        _compile_anew()
        with time_limit(limit_s, "saving and loading", remedy=LARGER):
            path = write_stack(
                folder,
                self.workload,
                name=self.workload.name,
                stack=built.stack,
                plans=built.plans,
                goal=self.settings.goal,
            )
            return replace(built, model=load_optimized(path, self.workload)), path

    def _compared_afresh(
        self, path: Path, limit_s: float | None, **settings: Any
    ) -> Comparison | None:
        """Compare the baseline with what was saved in a fresh process; None where that fails.

        It finds what a user's own process finds: no attempt was made there.
        """
        try:
            return compare_in_fresh_process(
                path,
                self.workload,
                target=self._target,
                limit_s=max(self.start_s, limit_s or 0.0),
                **settings,
            )
        except (TinyTorchError, OSError, PickleError, AttributeError, TypeError) as error:
            # A target that works in this process only, a model that cannot be pickled, no memory.
            self.notes.append(NOT_FRESH.format(reason=_reason(error)))
            return None

    def compare_with(
        self, first: Built, second: Built, *, budget_s: float, seed: int = 0
    ) -> Comparison:
        """Time two stacks in turns, without asking again whether they are any good.

        Where the goal is bytes, memory and size are measured as well.
        """
        return compare(
            *(self._side(each.model) for each in (first, second)),
            budget_s=budget_s,
            evidence=OBJECTIVE_OF[self.settings.goal] != "time",
            precision=PRECISION,
            timing=self.settings.timing,
            names=(" + ".join(first.stack), " + ".join(second.stack)),
            seed=seed,
        )

    @property
    def baseline_scores(self) -> npt.NDArray[Any] | None:
        """Scores of the baseline, one for each example; None without an evaluate."""
        return self._baseline.scores

    # ------------------------------------------------------------ check, then time

    def _judged(
        self,
        attempt: Attempt,
        built: Built,
        best: Built | None,
        timing: Timing,
        *,
        risk: Risk,
        afresh: Callable[..., Comparison | None] | None = None,
        file_bytes: int | None = None,
    ) -> Attempt:
        """Return the attempt with what was found; `file_bytes` is the size of what was saved."""
        budget_s, seed, progress = timing
        is_final = bool(attempt.confirmed_on)
        check, found, call_s = self._checked(attempt.name, built.model, risk, is_final=is_final)
        attempt = replace(attempt, setup_s=attempt.setup_s + call_s)
        if check.outputs is not None and check.outputs.broken:
            return replace(attempt, outcome=BROKEN, reason=check.outputs.broken)
        if check.doubt and not check.is_inconclusive:
            return replace(attempt, outcome=INACCURATE, reason=check.doubt)
        settings: dict[str, Any] = {
            "budget_s": budget_s,
            "precision": PRECISION,
            "timing": self.settings.timing,
            "both_timings": is_final or self.settings.needs_latency_beside,
            "evidence": is_final,
            "names": (BASELINE, CANDIDATE),  # notes are about these; the attempt has the name
            "seed": seed,
        }
        rng, candidate = np.random.default_rng(seed), self._side(built.model)
        baseline = self._baseline.side(rng)
        comparison = afresh(**settings) if afresh is not None else None
        if comparison is not None:
            attempt = replace(attempt, confirmed_on=FRESH)
            comparison = replace(comparison, outputs=check.outputs)
        else:
            side = WorkloadSide(candidate, name=CANDIDATE, rng=rng, known=Known(found))
            comparison = compare(baseline, side, progress=progress, **settings)
        comparison = comparison.named(BASELINE, attempt.name)
        missing: dict[str, Failure] = dict(comparison.not_measured)
        if not is_final:
            missing = dict.fromkeys(("calls", "energy", "accuracy"), FOR_THE_BEST)
            resources = self._resources(baseline, candidate, comparison)
            comparison = replace(comparison, outputs=check.outputs, resources=resources)
        elif comparison.resources is not None and file_bytes is not None:
            ours, theirs = comparison.resources
            resources = ours, theirs.with_file(file_bytes)
            comparison = replace(comparison, resources=resources)
        if check.accuracy is not None:
            missing.pop("accuracy", None)
        elif self.workload.evaluate is None:
            missing["accuracy"] = NO_EVALUATE
        comparison = replace(comparison, accuracy=check.accuracy, not_measured=missing)
        attempt = replace(attempt, comparison=comparison, notes=check.notes)
        if check.is_inconclusive:
            return replace(attempt, outcome=ACCURACY_INCONCLUSIVE, reason=check.doubt)
        outcome, against = outcome_at(self.settings.goal, comparison), None
        if best is not None and outcome != WORSE:
            against = self.compare_with(best, built, budget_s=budget_s, seed=seed)
        return replace(
            attempt,
            outcome=outcome,
            reason=str(comparison),
            against_best=against,
        )

    def _checked(
        self, name: str, model: Any, risk: Risk, *, is_final: bool
    ) -> tuple[Check, Arrays, float]:
        """Return whether a model passes by outputs or scores, its outputs, its first call.

        Whether it is hopelessly slow is found out in between: scores take many calls.
        """
        side = WorkloadSide(replace(self.workload, model=model), name=name)
        with side.opened():
            side.stay_as_it_is("it is called a few times")
            found, call_s = side.outputs_and_seconds()
            outputs = (
                compare_outputs(self._baseline.outputs, found, mask=self._baseline.mask)
                if self._baseline.outputs and found
                else None
            )
            if outputs is not None and outputs.broken:
                return Check(outputs), found, call_s
            if not is_final:
                self._drop_if_hopeless(side, call_s)
            closeness = partial(
                by_outputs,
                outputs,
                most=self.settings.max_output_error,
                explain=lambda: self._explained(found),
            )
            if self._baseline.scores is None:
                return closeness(), found, call_s
            scores, _ = side.scores()
            accuracy = compare_accuracy(
                self._baseline.scores,
                np.asarray(scores),
                margin=self.settings.max_accuracy_drop,
                metric=self._baseline.metric,
            )
            is_another = risk == "approximate"  # of which outputs cannot tell how good it is
            check = by_scores(accuracy, outputs, closeness=None if is_another else closeness)
            return check, found, call_s

    def _drop_if_hopeless(self, candidate: WorkloadSide, first_s: float) -> None:
        """Raise DroppedError where a candidate has to be faster and is nowhere near it.

        What launch overhead hides may be another part's to bring back: kernels are allowed as many
        times longer as the device is idle.
        """
        limits = set(self.settings.limits) - {"latency_ms"}
        if OBJECTIVE_OF[self.settings.goal] != "time" or limits:
            return  # then what is slower may still be what is wanted
        idle_share = (self.profile.idle_share if self.profile else None) or 0.0
        hopeless = HOPELESS / max(1 - idle_share, 1 / BEYOND_DOUBT)
        if first_s <= hopeless * self._baseline.call_s:
            return
        baseline = WorkloadSide(replace(self.workload, evaluate=None), name=BASELINE)
        with baseline.opened():
            baseline.stay_as_it_is("it is called a few times")
            found = slowness_of(
                candidate.call_seconds,
                baseline.call_seconds,
                hopeless=hopeless,
                is_prepared=prepares_itself(candidate.workload.model),
            )
        if found is not None:
            raise DroppedError(str(found))

    def _explained(self, found: Arrays) -> tuple[str, ...]:
        """Return the model's explanations of different integers by rounding, once for each output.

        That may take about as long as a call, for each sequence that differs.
        """
        model = self.workload.generating
        if model is None:
            return ()
        key = b"".join(each.tobytes() for each in found)
        if key not in self._explanations:
            given = (self.workload.inputs, self.workload.keywords, self._baseline.outputs, found)
            self._explanations[key] = model.rounding_explains(*given)
        return self._explanations[key]

    def _resources(
        self, baseline: WorkloadSide, candidate: Workload, comparison: Comparison
    ) -> tuple[Resources, Resources]:
        """Measure what both need after they were compared."""
        baseline.release()  # a device may have no room for a copy beside both
        first_s, second_s = comparison.pace.call_s
        with WorkloadSide(candidate, name=comparison.candidate_name).opened():
            after = measure_resources(
                candidate,
                preparations=comparison.preparations[1],
                was_called=True,  # when its outputs were checked
                call_s=second_s,
            )
        return self._baseline.resources(baseline, call_s=first_s), after

    def _side(self, model: Any) -> Workload:
        return replace(self.workload, model=model, evaluate=None)


def _reason(error: Exception) -> str:
    """Return an error in one line; our own words need no class before them."""
    return str(error) if isinstance(error, TinyTorchError) else first_line(error)


def _why_empty(plan: Plan) -> str:
    reasons = list(plan.skipped_by_reason) or list(plan.notes) or ["no layer that it could change"]
    shown = "; ".join(reasons[:2])
    return f"{plan.transform}: {shown}" + ("; ..." if len(reasons) > 2 else "")


def by_place(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries in the order in which they are carried out."""
    return tuple(sorted(entries, key=lambda each: each.place))
