"""One target of a gate: the candidate against a commit, or against a stored record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import FASTER, SLOWER, Comparison
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.comparison.processes import Isolated
from tinytorch.comparison.sequential import TimeRatio
from tinytorch.errors import MeasurementError, ModelError, SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.samples import Samples
from tinytorch.records.baselines import (
    KIND,
    LATENCY,
    TIME_RATIO,
    StoredBaselines,
    accuracy_against,
    compare_with_record,
    settings_of,
    stored_scores,
)
from tinytorch.records.gate_origins import about_code
from tinytorch.records.gate_result import NOT_SHOWN, TargetResult, decide
from tinytorch.records.gate_sides import BASELINE, CANDIDATE, GateSide, Probed
from tinytorch.records.settings import GateSettings
from tinytorch.workloads.record import Record

__all__ = ["Measuring", "against_commit", "against_record", "latency_of", "record_of"]

CANDIDATE_AGAIN = "candidate once more"


@dataclass(frozen=True)
class Measuring:
    """How a gate measures, whatever it compares with."""

    settings: GateSettings
    environment: Mapping[str, Any]
    seed: int = 0
    progress: Progress | None = None

    def compare(
        self,
        first: Isolated,
        second: Isolated,
        *,
        names: tuple[str, str],
        is_known: Callable[[TimeRatio], bool],
    ) -> Comparison:
        """Compare two isolated targets as the settings say."""
        return compare(
            first,
            second,
            budget_s=self.settings.budget_s,
            margin=self.settings.margin,
            names=names,
            is_known=is_known,
            seed=self.seed,
            progress=self.progress,
        )


# ---------------------------------------------------------------- against a commit


def against_commit(
    target: str,
    sides: tuple[GateSide, GateSide],
    probed: tuple[Probed, Probed],
    measuring: Measuring,
) -> TargetResult:
    """Compare two trees of code, in fresh processes that take turns."""
    tolerance = measuring.settings.tolerance
    result = _before_measuring(TargetResult(target, tolerance), sides, probed)
    if result.is_new or result.problem or result.baseline_error or result.candidate_error:
        return result
    started = perf_counter()
    try:
        found = measuring.compare(
            sides[0].isolated(target),
            sides[1].isolated(target),
            names=(BASELINE, CANDIDATE),
            is_known=lambda ratio: decide(ratio, tolerance) != NOT_SHOWN,
        )
    except (ModelError, MeasurementError) as error:
        result = _after_failure(result, str(error))
        return replace(result, seconds_used=perf_counter() - started)
    broken = found.outputs.broken if found.outputs else ""
    if broken:  # what computes something else is not ranked by its speed
        return replace(
            result,
            candidate_error=f"gives broken outputs: {broken}",
            outputs=_about_outputs(found.outputs),
            seconds_used=perf_counter() - started,
        )
    return _with_accuracy(
        replace(
            result,
            ratio=found.ratio,
            comparison=found,
            outputs=_about_outputs(found.outputs),
            has_same_outputs=found.outputs is not None and found.outputs.is_identical,
            notes=(*result.notes, *found.notes),
            seconds_used=perf_counter() - started,
        ),
        found,
        probed,
    )


def _before_measuring(
    result: TargetResult, sides: tuple[GateSide, GateSide], probed: tuple[Probed, Probed]
) -> TargetResult:
    """See what loading the target on both sides has shown already."""
    old, new = probed
    for side, other, seen in ((sides[0], sides[1], old), (sides[1], sides[0], new)):
        if seen.foreign:
            return replace(
                result,
                problem=f"the {side.name} imports {seen.foreign[0]}, which is not part of "
                f"{side.label}: both sides would run the same code as the {other.name}, or neither "
                "its own; an editable install may be the reason (give each side an environment "
                "with --setup and --python)",
            )
    if old.is_missing and not new.error:
        return replace(result, is_new=True)
    if old.error or new.error:
        gone = "does not have it any more"
        return replace(
            result,
            candidate_error=gone if new.is_missing else new.error and f"fails: {new.error}",
            baseline_error="" if old.is_missing else old.error and f"fails: {old.error}",
        )
    tops = (sides[0].top or sides[0].folder, sides[1].top or sides[1].folder)
    problem, note = about_code(tops, (old.origins, new.origins))
    return replace(result, problem=problem, notes=(note,) if note else ())


def _after_failure(result: TargetResult, message: str) -> TargetResult:
    """See whose failure ended a comparison; its message starts with the name of the side."""
    error = _error_of(CANDIDATE, message)
    if error:
        return replace(result, candidate_error=error)
    error = _error_of(BASELINE, message)
    return replace(result, baseline_error=error) if error else replace(result, problem=message)


def _error_of(side: str, message: str) -> str:
    return message.removeprefix(side).lstrip(": ") if message.startswith(side) else ""


def _with_accuracy(
    result: TargetResult, found: Comparison, probed: tuple[Probed, Probed]
) -> TargetResult:
    """Add what is known about accuracy; where it could be known and is not, nothing passes."""
    if found.accuracy is not None:
        return replace(result, accuracy=found.accuracy)
    had, has = (each.has_evaluate for each in probed)
    reason = found.not_measured.get("accuracy", "")
    if had and has:
        error = _error_of(CANDIDATE, reason)
        if error:
            return replace(result, candidate_error=error)
        return replace(result, obstacle=f"accuracy could not be compared: {reason}")
    if had:
        return replace(
            result, obstacle="the candidate has no evaluate any more: its accuracy is not known"
        )
    if has:
        note = "the baseline has no evaluate yet: accuracy is not compared"
        return replace(result, notes=(*result.notes, note))
    return result


def _about_outputs(found: OutputDifference | None) -> str:
    """Name a difference between outputs, or nothing."""
    if found is None or found.is_identical:
        return ""
    if found.mismatch:
        return f"outputs differ: {found.mismatch}"
    if found.max_error is None:
        return f"outputs differ: {found.equal_share or 0:.2%} of the values are equal"
    relative = found.max_relative_error or 0.0
    return f"outputs differ by up to {found.max_error:.2g} ({relative:.2g} of the largest)"


# ---------------------------------------------------------------- against a record


def against_record(
    target: str,
    side: GateSide,
    probed: Probed,
    stored: StoredBaselines,
    measuring: Measuring,
) -> TargetResult:
    """Measure the candidate against itself, and compare its times with those of a record.

    Against itself, because that is how the record was made: in fresh processes that take turns
    with those of another commit.
    """
    tolerance = measuring.settings.tolerance
    result = TargetResult(target, tolerance)
    if probed.error:
        return replace(result, candidate_error=f"fails: {probed.error}")
    settings = settings_of(probed.python if side.python else "", probed.origins.file)
    like = Record(KIND, target, {}, measuring.environment, settings)
    baseline, reason = stored.of(like)
    if baseline is None:
        return replace(result, obstacle=reason)
    started = perf_counter()
    isolated = side.isolated(target)
    try:
        found = measuring.compare(
            isolated,
            isolated,
            names=(CANDIDATE, CANDIDATE_AGAIN),
            is_known=lambda ratio: _is_within(ratio, tolerance / 2),
        )
    except (ModelError, MeasurementError) as error:
        message = str(error).removeprefix(CANDIDATE_AGAIN).removeprefix(CANDIDATE).lstrip(": ")
        result = replace(result, candidate_error=message)
        return replace(result, seconds_used=perf_counter() - started)
    ratio, notes = compare_with_record(latency_of(found), baseline)
    result = replace(
        result,
        ratio=ratio,
        comparison=found,
        notes=(f"the baseline is record {baseline.record.hash[:12]}", *notes, *_noise(found)),
        seconds_used=perf_counter() - started,
    )
    return _with_stored_accuracy(result, found, baseline.record, measuring.settings.margin)


def _is_within(ratio: TimeRatio, share: float) -> bool:
    return ratio.high <= 1 + share and ratio.low >= 1 / (1 + share)


def _noise(found: Comparison) -> tuple[str, ...]:
    if found.verdict not in (FASTER, SLOWER):
        return found.notes
    apart = f"{found.time_ratio - 1:+.1%}"
    return (*found.notes, f"compared with itself the candidate differs by {apart}: much noise here")


def _with_stored_accuracy(
    result: TargetResult, found: Comparison, record: Record, margin: float
) -> TargetResult:
    if found.accuracy is None:
        reason = found.not_measured.get("accuracy", "")
        if _error_of(CANDIDATE, reason):
            return replace(result, candidate_error=_error_of(CANDIDATE, reason))
        if stored_scores(record) is not None:
            return replace(result, obstacle=f"the record has an accuracy, this run none: {reason}")
        return result
    try:
        accuracy = accuracy_against(record, found.accuracy, margin)
    except SettingError as error:
        return replace(result, obstacle=f"accuracy could not be compared: {error}")
    if accuracy is None:
        note = "the record has no accuracy: it is not compared"
        return replace(result, notes=(*result.notes, note))
    return replace(result, accuracy=accuracy)


# ---------------------------------------------------------------- keeping


def latency_of(found: Comparison) -> Samples:
    """Give the candidate's seconds per call, one value for each process."""
    values = tuple(float(np.median(each.candidate)) for each in found.rounds)
    return Samples(LATENCY, values, loops=found.pace.loops[1])


def record_of(
    result: TargetResult,
    measuring: Measuring,
    labels: tuple[str, str],
    *,
    python: str = "",
    file: str = "",
    run: str = "",
) -> Record:
    """Give a result as a record, whose times can serve as a baseline later.

    `labels` name baseline and candidate; `python` is the version of an interpreter of their own,
    `file` that of the target, relative to the tree.
    """
    samples: dict[str, Samples] = {}
    if result.comparison is not None:
        samples[LATENCY] = latency_of(result.comparison)
        if result.comparison.baseline_name == BASELINE:
            ratios = tuple(float(np.exp(each.log_ratio)) for each in result.comparison.rounds)
            samples[TIME_RATIO] = Samples(TIME_RATIO, ratios, unit="")
    details = {**result.to_dict(), "against": labels[0], "candidate": labels[1]}
    return Record(
        kind=KIND,
        name=result.target,
        samples=samples,
        environment=measuring.environment,
        settings=settings_of(python, file),
        details=details,
        run=run,
        notes=result.notes,
    )
