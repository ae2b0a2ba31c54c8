"""Does it fit? What a compressed model takes where it will run, measured, beside named budgets."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

from tinytorch.codec import Coded
from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.comparison.resources import measure_resources
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.measure.estimate import INCONCLUSIVE, Estimate
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import measure_time
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.workload import Workload, call_model, check_workload
from tinytorch.showing import Shown
from tinytorch.transforms.compressed_file import load_compressed, save_compressed
from tinytorch.transforms.compression import CompressionResult
from tinytorch.transforms.support.weights import scores_of

FITS, DOES_NOT_FIT = "fits", "does not fit"
NOT_MEASURED = "not measured"
VERDICTS = {True: FITS, False: DOES_NOT_FIT, None: INCONCLUSIVE}
"""Whether a quantity keeps to its budget -> the verdict on it."""

MB = 2**20
MS = 1e-3
LOADS, FEWEST_LOADS = 11, 3
"""How often the file is loaded: enough for an interval of the median that is not all of them, and
the least where that would take too long."""
DEFAULT_MARGIN = 0.01
CONFIDENCE = 0.95
NO_INPUTS = "there are no inputs"


@dataclass(frozen=True)
class Check:
    """One quantity beside its budget, in the unit of its name; `limit` is None without a budget.

    The verdict is `fits`, `does not fit`, `inconclusive` where the interval straddles the budget,
    or `not measured`, and then there is a reason; without a budget it is empty.
    """

    name: str
    found: Estimate | None
    limit: float | None
    verdict: str
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Deployment(Coded, Shown):
    """What was measured of a model in its file, and the budgets that it should keep to.

    load: seconds from the file to a model that has answered a first call; they include copying the
    model that says what the structure is. latency: seconds of a call. peak_bytes: the most that was
    alive at once during a call, parameters included; on a GPU what its allocator gave out.
    accuracy: beside the workload's own model, both as they will be used, not in training.
    original_bytes: the size of that model's checkpoint. What is None has its reason in
    `not_measured`.
    """

    name: str
    file_bytes: int
    original_bytes: int
    budgets: Mapping[str, float]
    load: Samples | None = None
    latency: Samples | None = None
    peak_bytes: int | None = None
    accuracy: AccuracyComparison | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    also_written = ("name", "verdict", "checks")

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every quantity, with the budgets that there are."""
        return tuple(self._check(name, measure(self)) for name, measure in BUDGETS.items())

    @property
    def verdict(self) -> str:
        """`fits` only if every budget is shown to be kept; `does not fit` if one is not.

        Without a budget there is nothing to judge, and it is empty.
        """
        verdicts = {check.verdict for check in self.checks if check.limit is not None}
        if DOES_NOT_FIT in verdicts:
            return DOES_NOT_FIT
        if not verdicts:
            return ""
        return FITS if verdicts == {FITS} else INCONCLUSIVE

    def _check(self, name: str, found: Estimate | None) -> Check:
        limit = self.budgets.get(name)
        reason = self.not_measured.get(name, "") if found is None else ""
        if limit is None:
            return Check(name, found, None, "", reason)
        if found is None:
            return Check(name, None, limit, NOT_MEASURED, reason)
        return Check(name, found, limit, VERDICTS[found.is_below(limit)])

    def __repr__(self) -> str:
        verdict = f", {self.verdict}" if self.verdict else ""
        return (
            f"Deployment({self.name}, {self.file_bytes:,} bytes instead of "
            f"{self.original_bytes:,}{verdict})"
        )


def deployment_report(
    workload: Workload,
    compressed: CompressionResult | str | Path | None = None,
    *,
    budgets: Mapping[str, float] | None = None,
    resize: bool = False,
    budget_s: float = 1.0,
) -> Deployment:
    """Measure what a compressed model takes: file, time to load, latency, memory, accuracy.

    `compressed` is the result of a `ModelCompressor` or a file of `save_compressed`; without it,
    the workload's model is saved and loaded unchanged. `budgets` are limits by name: ``flash_mb``,
    ``load_ms``, ``latency_ms`` (the medians), ``memory_mb`` and ``accuracy_drop`` (what the mean
    score may lose); MB is 2**20 bytes. `resize` is as for `load_compressed`. `budget_s` is the time
    for measuring the latency, and that for loading: a large file is loaded less often, at least 3
    times.
    """
    limits = _checked_budgets(budgets or {})
    check_workload(workload, "a report")
    adapter = adapter_for(workload.model, workload.arguments)
    with tempfile.TemporaryDirectory(prefix="tinytorch-") as folder:
        path = _written(workload, compressed, Path(folder) / "compressed")
        checkpoint = Path(folder) / "checkpoint"
        adapter.save(workload.model, checkpoint)

        def load() -> Any:
            model = _loaded(
                path, workload.model, resize=resize, is_ours=path.parent == Path(folder)
            )
            return model.eval() if hasattr(model, "eval") else model

        loaded = replace(workload, model=load())
        reasons: dict[str, str] = {}
        timed = _timed(loaded, load, adapter, budget_s) if workload.arguments else (None, None)
        if timed == (None, None):
            reasons |= {"load_ms": NO_INPUTS, "latency_ms": NO_INPUTS}
        peak = _peak_bytes(loaded, reasons)
        return Deployment(
            name=workload.name,
            file_bytes=path.stat().st_size,
            original_bytes=checkpoint.stat().st_size,
            budgets=limits,
            load=timed[0],
            latency=timed[1],
            peak_bytes=peak,
            accuracy=_accuracy(workload, loaded.model, limits, reasons),
            not_measured=reasons,
            notes=_notes(*timed),
        )


# ---------------------------------------------------------------- measuring


def _written(workload: Workload, compressed: Any, place: Path) -> Path:
    """Return the file to load, and write it where there is none yet."""
    if isinstance(compressed, (str, Path)):
        return Path(compressed)
    if isinstance(compressed, CompressionResult):
        compressed.save(place)
    elif compressed is None:
        save_compressed(place, workload.model)
    else:
        raise SettingError(
            f"give the result of a ModelCompressor, or the path of a file of save_compressed(), "
            f"got {type(compressed).__name__}"
        )
    return place


def _loaded(path: Path, model: Any, *, resize: bool, is_ours: bool) -> Any:
    """Load a file; errors name it only if the caller knows it."""
    try:
        return load_compressed(path, model, resize=resize)[0]
    except CheckpointError as error:
        if not is_ours:
            raise
        words = str(error).replace(str(path), "what was compressed")
        raise CheckpointError(words) from None


def _timed(
    loaded: Workload, load: Callable[[], Any], adapter: Adapter, budget_s: float
) -> tuple[Samples | None, Samples | None]:
    """Measure from the file to the first answer, and a call of a model that is there."""
    device = adapter.device(loaded.model, loaded.arguments)

    def answer() -> None:
        call_model(load(), *loaded.inputs, **loaded.keywords)
        adapter.synchronize(device)

    with adapter.preserving(loaded.model), adapter.without_gradients():
        # the file was loaded once already, which is all that there is to warm
        loading = measure_time(
            answer, name="load", warmup=0, budget_s=budget_s, min_runs=FEWEST_LOADS,
            max_runs=LOADS, inner_loops=1,
        )  # fmt: skip
        latency = measure_time(
            loaded.run, name="latency", budget_s=budget_s, clock=adapter.run_clock(device)
        )
    return loading, latency


def _peak_bytes(loaded: Workload, reasons: dict[str, str]) -> int | None:
    if not loaded.arguments:
        reasons["memory_mb"] = NO_INPUTS
        return None
    resources = measure_resources(loaded)
    peak = resources.memory_bytes
    if peak is None:
        of = "peak_bytes" if resources.device_peak_bytes is None else "parameter_bytes"
        reasons["memory_mb"] = resources.not_measured.get(of, "it was not seen")
    return peak


def _accuracy(
    workload: Workload, model: Any, limits: Mapping[str, float], reasons: dict[str, str]
) -> AccuracyComparison | None:
    if workload.evaluate is None:
        reasons["accuracy_drop"] = "there is no evaluate()"
        return None
    return compare_accuracy(
        scores_of(workload, workload.model),
        scores_of(workload, model),
        margin=limits.get("accuracy_drop", DEFAULT_MARGIN),
        metric=workload.metric,
    )


def _notes(load: Samples | None, latency: Samples | None) -> tuple[str, ...]:
    notes = (
        [] if load is None else ["the file was read before: loading it the first time is slower"]
    )
    if load is not None and load.count < LOADS:
        sure = load.median_interval(CONFIDENCE).coverage
        doubt = f": its interval holds with a confidence of {sure:.0%}, not {CONFIDENCE:.0%}"
        doubt = doubt if sure < CONFIDENCE else ""
        notes.append(
            f"loading was measured only {load.count} times of {LOADS}{doubt}; a larger budget_s "
            "gives a narrower interval"
        )
    for samples in (load, latency):
        notes += [] if samples is None else [f"{samples.name}: {note}" for note in samples.notes]
    return tuple(notes)


# ---------------------------------------------------------------- budgets


def _exactly(number: float | None) -> Estimate | None:
    return None if number is None else Estimate.counted(number)


def _median_ms(samples: Samples | None) -> Estimate | None:
    return None if samples is None else samples.median_interval(CONFIDENCE).scaled(1 / MS)


def _drop(accuracy: AccuracyComparison | None) -> Estimate | None:
    if accuracy is None:
        return None
    if accuracy.failed:
        return Estimate(math.inf, math.inf, math.inf, accuracy.confidence, accuracy.n)
    ends = (-accuracy.difference, -accuracy.high, -accuracy.low)
    return Estimate(*ends, accuracy.confidence, accuracy.n)


BUDGETS: dict[str, Callable[[Deployment], Estimate | None]] = {
    "flash_mb": lambda each: _exactly(each.file_bytes / MB),
    "load_ms": lambda each: _median_ms(each.load),
    "latency_ms": lambda each: _median_ms(each.latency),
    "memory_mb": lambda each: _exactly(None if each.peak_bytes is None else each.peak_bytes / MB),
    "accuracy_drop": lambda each: _drop(each.accuracy),
}
"""What can have a budget, by the name of that, in the unit of its name."""


def _checked_budgets(budgets: Mapping[str, Any]) -> dict[str, float]:
    for name, limit in budgets.items():
        if name not in BUDGETS:
            raise SettingError(f"unknown budget {name!r}; there are {', '.join(BUDGETS)}")
        is_number = isinstance(limit, Real) and not isinstance(limit, bool)
        if not is_number or not math.isfinite(limit) or limit < 0:
            raise SettingError(f"the budget {name} is a number from 0 on, got {limit!r}")
    return {name: float(limit) for name, limit in budgets.items()}
