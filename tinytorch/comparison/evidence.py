"""What speaks for and against a candidate beside its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.comparison.outputs import OutputDifference, compare_outputs
from tinytorch.comparison.processes import ProcessSide
from tinytorch.comparison.resources import Resources, measure_resources
from tinytorch.comparison.sequential import TimedRounds
from tinytorch.comparison.sides import CALLS_OF_STAGE, Arrays, LocalSide
from tinytorch.errors import Failure, MeasurementError, SettingError, TinyTorchError, check_number
from tinytorch.measure import timing
from tinytorch.measure.energy import find_energy_meters, measure_energy
from tinytorch.measure.environment import observe
from tinytorch.measure.interleaving import Round, interleave
from tinytorch.measure.samples import Samples, values_needed
from tinytorch.measure.timing import WALL, has_unseen_work
from tinytorch.models.workload import Workload

# ---------------------------------------------------------------- how long the slow calls take:
# single calls of two functions, in turns, and their percentiles

PERCENTILES = (50.0, 90.0, 99.0)
WARMUP_SHARE = 0.1
"""The part of the budget that warming up one of the functions may use."""
LEAST_CALLS = 5
"""The number of calls that are made even when the budget is used up before."""
OF_ROUNDS = (
    "calls of the rounds, because more would exceed the time budget; time lost to preemption is "
    "subtracted"
)
OVERHEAD_LIMIT = 0.01
"""The share of a call from which on the cost of reading the clock is named."""

Function = Callable[[], object]


def measure_tails(
    first: Function,
    second: Function,
    *,
    clock: timing.Clock = WALL,
    calls: int | None = None,
    budget_s: float = 2.0,
    rng: np.random.Generator | int = 0,
    names: tuple[str, str] = ("baseline", "candidate"),
) -> tuple[Samples, Samples]:
    """Time single calls of two functions, in pairs of random order; each value is one call.

    It stops after `calls` calls of each, by default as many as the interval of the 99th percentile
    needs, or when `budget_s` is used up. The garbage collector is paused, so what it takes is not
    part of the times. Notes say what the values cannot show.
    """
    wanted = values_needed(PERCENTILES[-1]) if calls is None else calls
    check_number("calls", wanted, least=1)
    check_number("budget_s", budget_s, above=0)
    with timing.gc_paused():
        end = perf_counter() + budget_s
        for function in (first, second):
            timing.warm_up(function, clock, budget_s * WARMUP_SHARE)
        before = observe()
        times = _take_pairs((first, second), clock, wanted, end, np.random.default_rng(rng))
        after = observe()
    doubts = after.doubts_since(before) if clock.is_disturbed_by_host else ()
    overhead = timing.reading_overhead(clock)
    one, other = (
        Samples(name, tuple(values), notes=doubts)
        for name, values in zip(names, times, strict=True)
    )
    return one.with_notes(*_notes(one, overhead)), other.with_notes(*_notes(other, overhead))


def least_tails_s(call_s: tuple[float, float]) -> float:
    """Return the minimum seconds of :func:`measure_tails`, for calls of `call_s`."""
    return (1 + LEAST_CALLS) * sum(call_s)


def calls_of_rounds(
    rounds: Sequence[Round], *, names: tuple[str, str] = ("baseline", "candidate")
) -> tuple[Samples, Samples]:
    """Return the times of single calls from rounds whose every turn was one call."""
    values = (
        tuple(seconds for each in rounds for seconds in each.baseline),
        tuple(seconds for each in rounds for seconds in each.candidate),
    )
    one, other = (
        Samples(name, own, notes=(OF_ROUNDS,)) for name, own in zip(names, values, strict=True)
    )
    return one.with_notes(*_notes(one, 0.0)), other.with_notes(*_notes(other, 0.0))


def _take_pairs(
    functions: tuple[Function, Function],
    clock: timing.Clock,
    wanted: int,
    end: float,
    rng: np.random.Generator,
) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    turns = interleave(
        range(2),
        rng=rng,
        at_least=min(wanted, LEAST_CALLS),
        at_most=wanted,
        budget_s=end - perf_counter(),
    )
    for _, side in turns:
        times[side].append(clock.time(functions[side], 1))
    return times


def too_few_calls(samples: Samples) -> list[str]:
    """Name the percentiles that have no interval with two ends, with the calls that they take."""
    unknown = [q for q in PERCENTILES if samples.count < values_needed(q)]
    if not unknown:
        return []
    ends = ", ".join(f"p{q:g} ({values_needed(q)})" for q in unknown)
    return [f"n={samples.count} is too few for two-sided intervals of {ends}; increase the budget"]


def _notes(samples: Samples, overhead_s: float) -> list[str]:
    notes = too_few_calls(samples)
    if samples.median < overhead_s / OVERHEAD_LIMIT:
        notes.append("clock overhead exceeds 1% of a call")
    return notes


# ---------------------------------------------------------------- what speaks for and against a
# candidate beside its time

TAILS_SHARE, ENERGY_SHARE = 0.5, 1.0
"""Single calls and energy may take these shares of the budget on top of it."""
ENERGY_TURNS, LEAST_ENERGY_TURNS = 4, 2
"""Two turns, A B B A, are the fewest in which a drift meets both sides alike."""
BASELINE, CANDIDATE = "baseline", "candidate"
"""Subjects of failures that one of the sides is to blame for."""
OTHER_DEVICES = Failure(
    "the sides run on different devices, which have different clocks and counters", "other-devices"
)
TOO_SLOW = Failure("single calls exceed the time budget; increase the budget", "too-slow")
ENERGY_IS_WARM = Failure(
    "energy is measured over consecutive calls, with warm caches", "cold-caches"
)
DEVICE_TIMES_SHARE, DEVICE_CALLS = 0.1, 50
"""Device times may take this share of the budget on top of it, and this many calls of each side."""
EVENTS_OF_ONE_DEVICE = Failure("needs two models on the same CUDA device", "other-devices")
UNSEEN = "leaves work on other streams, which events on the current one do not see"
UNSEEN_TRIES = 3
NO_EVALUATE = Failure("skipped: needs an evaluate function", "no-evaluate")
NO_EVALUATE_ANY_MORE = Failure(
    "the candidate has no evaluate, the baseline has one", "evaluate-removed", CANDIDATE
)
OTHER_METRIC, EVALUATE_FAILED = "other-metric", "evaluate-failed"
NO_ARRAYS = Failure("a side returns no array or number", "no-arrays")
IN_PROCESSES = Failure("the sides run in separate processes", "processes")
NOT_A_MODEL = Failure("skipped: needs models, not functions", "not-a-model")

AnySide = LocalSide | ProcessSide


@dataclass(frozen=True)
class Evidence:
    """Everything that is compared beside time; what is None has its reason in `not_measured`."""

    outputs: OutputDifference | None = None
    accuracy: AccuracyComparison | None = None
    resources: tuple[Resources, Resources] | None = None
    calls: tuple[Samples, Samples] | None = None
    energy: tuple[Samples, Samples] | None = None
    device_times: tuple[Samples, Samples] | None = None
    not_measured: Mapping[str, Failure] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def completed(
        self,
        first: AnySide,
        second: AnySide,
        *,
        budget_s: float,
        rng: np.random.Generator,
        timed: TimedRounds | None = None,
    ) -> Evidence:
        """Add what is measured after the time: single calls, memory, size on disk.

        What was `timed` tells how long calls take, and saves those that are slow.
        """
        if not (first.in_process and second.in_process):
            missing = dict.fromkeys(("calls", "resources", "energy"), IN_PROCESSES)
            return replace(self, not_measured={**missing, **self.not_measured})
        found = {
            "calls": _single_calls(first, second, budget_s=budget_s, rng=rng, timed=timed),
            "energy": _energy(first, second, seconds=budget_s * ENERGY_SHARE, timed=timed),
            "device_times": _device_times(first, second, budget_s=budget_s, rng=rng, timed=timed),
        }
        missing = {name: reason for name, (_, reason) in found.items() if reason}
        for side in (first, second):
            side.release()  # what is measured next is the models themselves; a device may be full
        resources = None
        if first.workload is None or second.workload is None:
            missing["resources"] = NOT_A_MODEL
        else:
            with _limited(first, second):
                one_s, other_s = timed.pace.call_s if timed else (0.0, 0.0)
                resources = (
                    _resources(first, first.workload, one_s),
                    _resources(second, second.workload, other_s),
                )
        return replace(
            self,
            calls=found["calls"][0],
            resources=resources,
            energy=found["energy"][0],
            device_times=found["device_times"][0],
            not_measured={**self.not_measured, **missing},
        )


def gather_evidence(first: AnySide, second: AnySide, *, margin: float) -> Evidence:
    """Call both sides and compare what they give, before anybody asks which one is faster."""
    missing: dict[str, Failure] = {}
    notes = []
    outputs: list[Arrays] = []
    for side in (first, second):
        once = side.known.outputs
        is_called_again = once is None or not _is_slow(side)
        once = side.outputs() if once is None else once
        outputs.append(once)
        if once and is_called_again and not _repeats(side, once):
            notes.append(f"{side.name} is not deterministic")
        if side.in_process:
            side.release()  # a device may have no room for copies of both
    notes += _about_inputs(first, second)
    mask = _common_mask(first, second)
    difference = compare_outputs(*outputs, mask=mask) if all(outputs) else None
    if difference is None:
        missing["outputs"] = NO_ARRAYS
    accuracy, failure = _accuracy(first, second, margin=margin)
    if failure:
        missing["accuracy"] = failure
    return Evidence(difference, accuracy, not_measured=missing, notes=tuple(notes))


def _accuracy(
    first: AnySide, second: AnySide, *, margin: float
) -> tuple[AccuracyComparison | None, Failure | None]:
    """Compare the scores of both sides, or return why that cannot be done."""
    found = []
    for side, subject in ((first, BASELINE), (second, CANDIDATE)):
        try:
            found.append(side.scores(first.workload))
        except TinyTorchError as error:
            return None, Failure(str(error), EVALUATE_FAILED, subject)
    (one, metric), (other, its_metric) = found
    if one is None or other is None:
        return None, NO_EVALUATE if one is None else NO_EVALUATE_ANY_MORE
    if metric != its_metric:
        words = f"the baseline is scored by {metric}, the candidate by {its_metric}"
        return None, Failure(words, OTHER_METRIC)
    try:
        return compare_accuracy(one, other, margin=margin, metric=metric), None
    except SettingError as error:
        return None, Failure(str(error), "scores-refused")


def _common_mask(first: AnySide, second: AnySide) -> npt.NDArray[Any] | None:
    """Return which positions count, where both sides get the same attention mask."""
    one, other = (side.attention_mask() for side in (first, second))
    return one if one is not None and other is not None and np.array_equal(one, other) else None


def _is_slow(side: AnySide) -> bool:
    return side.slow_call_s > 0


def _repeats(side: AnySide, outputs: Arrays) -> bool:
    return compare_outputs(outputs, side.outputs()).is_identical


def _resources(side: LocalSide, workload: Workload, call_s: float) -> Resources:
    if side.known.resources is not None:
        return side.known.resources
    # A side that is not built anew has called the model itself.
    was_called = not side.can_rebuild
    return measure_resources(
        workload, preparations=side.preparations, was_called=was_called, call_s=call_s
    )


def _about_inputs(first: AnySide, second: AnySide) -> list[str]:
    """Name inputs of other shapes: such sides do not do the same work."""
    one, other = first.input_shapes(), second.input_shapes()
    if one is None or other is None or one == other:
        return []
    return [f"the sides get different inputs: {one} against {other}"]


def _single_calls(
    first: LocalSide,
    second: LocalSide,
    *,
    budget_s: float,
    rng: np.random.Generator,
    timed: TimedRounds | None,
) -> tuple[tuple[Samples, Samples] | None, Failure | None]:
    """Time calls one by one, or take those of the rounds where calls are slow; or say why not."""
    if first.clock.name != second.clock.name:
        return None, OTHER_DEVICES
    names = first.name, second.name
    if timed is not None and least_tails_s(timed.pace.call_s) > budget_s * TAILS_SHARE:
        if timed.pace.loops != (1, 1):
            return None, TOO_SLOW
        return calls_of_rounds(timed.rounds, names=names), None
    with _limited(first, second, seconds=budget_s):
        calls = measure_tails(
            first.call_untested,
            second.call_untested,
            clock=first.clock,
            budget_s=budget_s * TAILS_SHARE,
            rng=rng,
            names=names,
        )
    return calls, None


def _device_times(
    first: LocalSide,
    second: LocalSide,
    *,
    budget_s: float,
    rng: np.random.Generator,
    timed: TimedRounds | None,
) -> tuple[tuple[Samples, Samples] | None, Failure | None]:
    """Time single calls of models by events of the device that both are on; or return why not.

    Neither is there where nothing runs on a device.
    """
    if not first.devices and not second.devices:
        return None, None
    clock = first.event_clock()
    if clock is None or second.event_clock() is None or first.devices != second.devices:
        return None, EVENTS_OF_ONE_DEVICE
    seconds = budget_s * DEVICE_TIMES_SHARE
    if timed is not None and least_tails_s(timed.pace.call_s) > seconds:
        return None, TOO_SLOW
    if blind := [side.name for side in (first, second) if _is_partly_unseen(side)]:
        return None, Failure(f"{' and '.join(blind)} {UNSEEN}", "unseen-work")
    with _limited(first, second, seconds=budget_s):
        found = measure_tails(
            first.call_untested,
            second.call_untested,
            clock=clock,
            calls=DEVICE_CALLS,
            budget_s=seconds,
            rng=rng,
            names=(first.name, second.name),
        )
    return (replace(found[0], notes=()), replace(found[1], notes=())), None


def _is_partly_unseen(side: LocalSide) -> bool:
    """Return whether events on the current stream miss work; once may be a hiccup."""
    device = side.devices[0]
    return all(has_unseen_work(side.call_untested, device) for _ in range(UNSEEN_TRIES))


def _energy(
    first: LocalSide, second: LocalSide, *, seconds: float, timed: TimedRounds | None
) -> tuple[tuple[Samples, Samples] | None, Failure | None]:
    """Return joules per call of both, in turns, or the reason why there are none."""
    if first.clock.name != second.clock.name or first.devices != second.devices:
        return None, OTHER_DEVICES
    if first.untimed_call_s:
        return None, ENERGY_IS_WARM
    meters, reasons = find_energy_meters(first.device)
    if not meters:
        return None, Failure("; ".join(reasons), "no-counters")
    found: tuple[list[Samples], list[Samples]] = ([], [])
    turns = ENERGY_TURNS
    call_s: tuple[float | None, float | None] = (None, None)
    if timed is not None and sum(timed.pace.call_s) > seconds / ENERGY_TURNS:
        turns, call_s = LEAST_ENERGY_TURNS, timed.pace.call_s
    try:
        for turn in range(turns):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            for index in order:
                side = (first, second)[index]
                found[index].append(
                    measure_energy(
                        side.call_untested,
                        meters=meters,
                        seconds=seconds / turns / 2,
                        windows=1,
                        wait=side.wait_for_device,
                        name=side.name,
                        call_s=call_s[index],
                    )
                )
    except MeasurementError as error:
        return None, Failure(str(error), "counters-failed")
    return (_joined(found[0]), _joined(found[1])), None


def _joined(parts: list[Samples]) -> Samples:
    values = tuple(value for each in parts for value in each.values)
    notes = tuple(dict.fromkeys(note for each in parts for note in each.notes))
    return replace(parts[0], values=values, notes=notes)


def _limited(
    first: LocalSide, second: LocalSide, *, seconds: float = 0.0
) -> AbstractContextManager[None]:
    """Stop a stage when a call in it does not return, if a timeout was set."""
    allowed = max(first.timeout_s or 0.0, second.timeout_s or 0.0)
    limit_s = seconds + CALLS_OF_STAGE * allowed if allowed else None
    return timing.time_limit(limit_s, f"{first.name} or {second.name}")
