"""How far the outputs of two models are apart, before anybody asks which one is faster."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.errors import DTypeError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload

Array = npt.NDArray[Any]

CHUNK = 1 << 20
"""Elements that are compared at a time, so that large outputs need no copies of their size."""
MASK = "attention_mask"
"""The argument whose zeros hide positions of a sequence, as models of transformers call it."""
NOTHING = "neither side returned numbers: nothing to compare"


@dataclass(frozen=True)
class ArrayDifference(Coded):
    """One output of the candidate against the same one of the baseline.

    Numbers with a fraction have `max_error`, `max_relative_error` (to the largest magnitude in the
    baseline's output), `sqnr_db` (the baseline's power over that of the error, in decibels;
    infinite where nothing differs) and, with at least two axes and two columns, `top1_agreement`:
    the share of rows with the largest value in the same place. Integers and booleans have
    `equal_share`. What does not apply is None.

    NaN and infinities are equal to themselves in the same place, and infinitely far from anything
    else. `not_finite` counts those of the candidate where the baseline has a finite number.
    `left_out` counts the positions that an attention mask hides.
    """

    shape: tuple[int, ...]
    max_error: float | None = None
    max_relative_error: float | None = None
    sqnr_db: float | None = None
    top1_agreement: float | None = None
    equal_share: float | None = None
    is_identical: bool = True
    note: str = ""
    not_finite: int = 0
    left_out: int = 0

    nonfinite = "text"


@dataclass(frozen=True)
class OutputDifference(Coded):
    """All outputs of one call. The numbers are those of the worst output.

    Where the outputs cannot be compared, `mismatch` says why, and there are no numbers.
    """

    outputs: tuple[ArrayDifference, ...] = ()
    mismatch: str = ""

    also_written = ("mismatch", "broken")

    @property
    def broken(self) -> str:
        """Why the candidate cannot replace the baseline at any speed, or "".

        It cannot with outputs of another number or shape, nor with NaN or infinity where the
        baseline has a finite number. Other values alone do not break it: the tolerance is
        up to the user.
        """
        if self.mismatch:
            return "" if self.mismatch == NOTHING else self.mismatch
        for position, each in enumerate(self.outputs):
            if each.not_finite:
                values = "value is" if each.not_finite == 1 else "values are"
                return (
                    f"{each.not_finite} of {math.prod(each.shape)} {values} not finite in output "
                    f"{position} of the candidate, but finite in the baseline's"
                )
        return ""

    @property
    def is_identical(self) -> bool:
        return not self.mismatch and all(each.is_identical for each in self.outputs)

    @property
    def max_error(self) -> float | None:
        """Largest absolute error."""
        return _largest(each.max_error for each in self.outputs)

    @property
    def max_relative_error(self) -> float | None:
        """Largest error over the largest magnitude of the baseline's same output."""
        return _largest(each.max_relative_error for each in self.outputs)

    @property
    def sqnr_db(self) -> float | None:
        """Signal to (quantization) noise ratio in decibels."""
        return _smallest(each.sqnr_db for each in self.outputs)

    @property
    def top1_agreement(self) -> float | None:
        """Share of rows with the largest value in the same place."""
        return _smallest(each.top1_agreement for each in self.outputs)

    @property
    def equal_share(self) -> float | None:
        """Share of equal integers and booleans."""
        return _smallest(each.equal_share for each in self.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd about the values, output by output; and what was not compared."""
        return tuple(
            f"output {position}: {note}"
            for position, each in enumerate(self.outputs)
            for note in (each.note, _about_left_out(each))
            if note
        )


def attention_mask_of(workload: Workload) -> Array | None:
    """Return which positions of the inputs count, as booleans (batch, sequence); None for all.

    It is what the model takes as `attention_mask`, by name, by place or in a dictionary, where
    that has two axes of zeros and ones.
    """
    given = _argument(workload, MASK)
    found = () if given is None else adapter_for(workload.model, (given,)).arrays(given)
    if len(found) != 1 or found[0].ndim != 2 or not np.isin(found[0], (0, 1)).all():
        return None
    mask: Array = found[0].astype(bool)
    return mask if mask.any() and not mask.all() else None


def _argument(workload: Workload, name: str) -> Any:
    """Return what a model gets under a name, whichever way it is given."""
    named = [workload.keywords, *(x for x in workload.arguments if isinstance(x, Mapping))]
    if (found := next((each[name] for each in named if name in each), None)) is not None:
        return found
    model = workload.model
    try:
        call = inspect.signature(getattr(model, "forward", model))
        return call.bind_partial(*workload.inputs).arguments.get(name)
    except (TypeError, ValueError):  # a callable without a signature, or another one
        return None


def compare_outputs(
    baseline: Sequence[Array], candidate: Sequence[Array], *, mask: Array | None = None
) -> OutputDifference:
    """Compare what two models returned for the same inputs, as arrays in the same order.

    With a `mask` (batch, sequence), outputs (batch, sequence, ...) are compared only where it is
    true. Outputs of two axes stay whole: (batch, sequence) cannot be told from (batch, features).
    """
    one, other = [_checked(each) for each in baseline], [_checked(each) for each in candidate]
    if not one and not other:
        return OutputDifference(mismatch=NOTHING)
    if len(one) != len(other):
        return OutputDifference(
            mismatch=f"the baseline returned {len(one)} outputs, the candidate {len(other)}"
        )
    for position, (first, second) in enumerate(zip(one, other, strict=True)):
        if first.shape != second.shape:
            return OutputDifference(
                mismatch=f"output {position} has shape {first.shape} from the baseline, "
                f"{second.shape} from the candidate"
            )
    return OutputDifference(
        tuple(_compare_visible(*pair, mask) for pair in zip(one, other, strict=True))
    )


def _compare_visible(baseline: Array, candidate: Array, mask: Array | None) -> ArrayDifference:
    if mask is None or not _is_along(baseline.shape, mask.shape):
        return _compare_arrays(baseline, candidate)
    found = _compare_arrays(baseline[mask], candidate[mask])
    return replace(found, shape=baseline.shape, left_out=int((~mask).sum()))


def _is_along(shape: tuple[int, ...], sequences: tuple[int, ...]) -> bool:
    """Return whether the first two axes are (batch, sequence).

    Attention weights are (batch, heads, sequence, sequence), with maybe as many heads as tokens.
    """
    is_clear = len(shape) == 3 or sequences[1] not in shape[2:]
    return len(shape) >= 3 and shape[:2] == sequences and is_clear


def _about_left_out(difference: ArrayDifference) -> str:
    if not difference.left_out:
        return ""
    count = math.prod(difference.shape[:2])
    return f"{difference.left_out} of {count} positions, hidden by {MASK}, are not compared"


def _checked(output: Any) -> Array:
    array = np.asarray(output)
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"an output of dtype {array.dtype} cannot be compared; give numbers")
    return array


def _compare_arrays(baseline: Array, candidate: Array) -> ArrayDifference:
    if baseline.dtype.kind in "biu" and candidate.dtype.kind in "biu":
        equal = int((baseline == candidate).sum())
        share = equal / baseline.size if baseline.size else 1.0
        return ArrayDifference(
            baseline.shape, equal_share=share, is_identical=equal == baseline.size
        )
    error = largest = signal = noise = 0.0
    is_identical, far, place, not_finite = True, 0, 0, 0
    flat_one, flat_other = baseline.reshape(-1), candidate.reshape(-1)
    for start in range(0, baseline.size, CHUNK):
        part = slice(start, start + CHUNK)
        with np.errstate(invalid="ignore", over="ignore"):
            one, errors = _errors(flat_one[part], flat_other[part])
            is_identical &= not errors.any()
            error = max(error, float(errors.max()))
            largest = max(largest, float(one.max()))
            signal += float((one * one).sum())
            noise += float((errors * errors).sum())
        if math.isinf(errors.max()):
            lost = np.isfinite(flat_one[part]) & ~np.isfinite(flat_other[part])
            not_finite += int(lost.sum())
            place = place if far else start + int(np.argmax(errors))
            far += int(np.isinf(errors).sum())
    return ArrayDifference(
        baseline.shape,
        max_error=error,
        max_relative_error=_ratio(error, largest),
        sqnr_db=_decibels(signal, noise),
        top1_agreement=_top1_agreement(baseline, candidate),
        is_identical=is_identical,
        note=_about_far(far, place, baseline, candidate) or _about_all(baseline),
        not_finite=not_finite,
    )


def _errors(baseline: Array, candidate: Array) -> tuple[Array, Array]:
    """Return the magnitudes of the baseline, 0 where not finite, and of the differences."""
    kind = np.complex128 if "c" in (baseline.dtype.kind, candidate.dtype.kind) else np.float64
    one, other = baseline.astype(kind), candidate.astype(kind)
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    errors = np.where(equal, 0.0, np.abs(one - other))
    errors[np.isnan(errors)] = math.inf
    return np.where(np.isfinite(one), np.abs(one), 0.0), errors


def _top1_agreement(baseline: Array, candidate: Array) -> float | None:
    """Return the share of rows where the candidate's largest value is (one of) the baseline's."""
    if baseline.ndim < 2 or baseline.shape[-1] < 2 or not baseline.size:
        return None
    if "c" in (baseline.dtype.kind, candidate.dtype.kind):
        return None
    expected, chosen = (each.argmax(axis=-1)[..., None] for each in (baseline, candidate))
    highest = np.take_along_axis(baseline, expected, -1)
    agree = (expected == chosen) | (np.take_along_axis(baseline, chosen, -1) == highest)
    return float(agree.mean())


def _about_far(far: int, place: int, baseline: Array, candidate: Array) -> str:
    """Count the values that are infinitely far off, and show the first one."""
    if not far:
        return ""
    where = tuple(int(axis) for axis in np.unravel_index(place, baseline.shape))
    values = f"{baseline[where]} in the baseline and {candidate[where]} in the candidate"
    return f"{far} of {baseline.size} values are infinitely far off; at {where} there is {values}"


def _about_all(baseline: Array) -> str:
    if not baseline.size:
        return "it is empty"
    return "no value of the baseline is finite" if not np.isfinite(baseline).any() else ""


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.inf


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0 or math.isinf(noise):
        return -math.inf
    return 10 * (math.log10(signal) - math.log10(noise))


def _largest(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _smallest(values: Iterator[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
