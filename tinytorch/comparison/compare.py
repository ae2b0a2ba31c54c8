"""compare: speed, accuracy and memory of a candidate against a baseline."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.evidence import Evidence, gather_evidence
from tinytorch.comparison.processes import Isolated, ProcessSide
from tinytorch.comparison.sequential import Rule, TimedRounds, time_until_known
from tinytorch.comparison.sides import LocalSide, WorkloadSide, function_name, seconds_of
from tinytorch.errors import Failure, MeasurementError, ModelError, SettingError, check_number
from tinytorch.measure import interleaving
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import describe_environment, usable_cores
from tinytorch.measure.estimate import INCONCLUSIVE, Estimate, time_verdict
from tinytorch.measure.gpu import DeviceWatch
from tinytorch.measure.memory import free_unused, private_pool_bytes, process_memory, shortage_text
from tinytorch.measure.timing import CACHES, COLD, WARM, cache_flush, reading_overhead
from tinytorch.measure.worker import is_out_of_memory
from tinytorch.models import workload
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import load_workload

# ---------------------------------------------------------------- sides whose every call finds
# caches that hold nothing of it

OVERHEAD_NAMED = 0.01
"""The share of a call from which on the cost of reading the clock is named."""


def empty_caches_between(*sides: LocalSide) -> tuple[str, ...]:
    """Empty the caches before each call of these sides; return notes on what could not be done.

    For a model these are the caches of the device that it is on. A function may compute anywhere:
    for it, those of the processor and of all devices that the program uses.
    """
    flushes: dict[str, Callable[[], None]] = {}
    notes = []
    for side in sides:
        places = side.places
        for place in places:
            flushes.setdefault(place, cache_flush(place))
        side.empty_caches(partial(_call_all, [flushes[place] for place in places]))
        notes += _about_short_calls(side)
    if "torch" not in sys.modules and usable_cores() > 1:
        notes.append("only the caches of one core, and those that it shares, were emptied")
    return tuple(notes)


def _about_short_calls(side: LocalSide) -> list[str]:
    if side.slow_call_s:
        return []
    side.build()
    seconds = min(side.time(1).seconds for _ in range(2))
    side.release()
    if seconds >= reading_overhead(side.clock) / OVERHEAD_NAMED:
        return []
    return [
        f"clock overhead exceeds {OVERHEAD_NAMED:.0%} of a call of {side.name}; with cold caches "
        "each call is timed alone"
    ]


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


# ---------------------------------------------------------------- what happens before two sides
# are timed: first calls, whether copies can be made, enough room

SLOW_FIRST_S, SLOW_FIRST = 0.1, 5.0
"""A first call longer than the next by this much, and this many times, prepares something."""
FIRST_CALLS = 6
"""After this many calls a model is at full speed: some compile in the first call, record in the
second and replay from the third on."""
AGREEMENT = 0.2
SLOW_COPY_S, SLOW_COPY = 0.05, 10.0
"""The same, for the first call of every copy: then each would be prepared again."""

COPY_DIFFERS = "a copy of it differs in the {difference}, and would be another model to time"

Result = TypeVar("Result")


@dataclass(frozen=True)
class _FirstCalls:
    """What a call takes once it is as fast as it gets, and what those before it took longer."""

    typical_s: float
    preparation: workload.Preparation | None


def warm_up_side(side: LocalSide, budget_s: float) -> None:
    """Call a side until it is as fast as it gets, and find out whether it can be built anew.

    What its first calls took longer, and what was done to its model before, is in
    `side.preparations` then: it is no part of any time.
    """
    model = side.workload.model if side.workload else None
    before, first = workload.preparations_of(model), None
    if side.can_rebuild:
        if side.workload:
            reason = _why_not_copied(model, before)
            if not reason:
                reason, first = _try_copies(side, budget_s)
        else:
            reason, first = _try_factory(side, budget_s)
        if reason:
            side.stay_as_it_is(reason)
    seen = first.preparation if first else None
    if not side.can_rebuild:
        own = _first_calls(side, like=first)
        seen = own.preparation or seen
        side.slow_call_s = own.typical_s if _is_slow(own, budget_s) else 0.0
    declared = workload.preparations_of(model)
    # What a model says itself about its first call need not be estimated.
    estimated = (seen,) if seen and declared == before else ()
    side.preparations = (*declared, *estimated)
    side.release()


def _why_not_copied(model: Any, declared: tuple[workload.Preparation, ...]) -> str:
    if declared:
        done = " and ".join(
            f"{each.what} once in {duration_text(each.seconds)}" for each in declared
        )
        return f"it was {done}, which a copy would have to do again"
    if workload.prepares_itself(model):
        return "its first call prepares it, and a copy would be prepared again"
    return ""


def _try_copies(side: LocalSide, budget_s: float) -> tuple[str, _FirstCalls | None]:
    """Return whether a model can be copied, fast enough to do it repeatedly.

    The result is why not, or "", and the first calls of the first copy.
    """
    first = None
    if side.known.call_s:
        known = _FirstCalls(side.known.call_s, None)
        if _is_slow(known, budget_s):
            return _about_slow_calls(known), known
    try:
        first = _first_calls(side)
        if side.copy_difference:  # then its first calls say nothing about the model either
            return COPY_DIFFERS.format(difference=side.copy_difference), None
        if _is_slow(first, budget_s):
            return _about_slow_calls(first), first
        side.release()
        build_s = seconds_of(side.build)
        call_s = side.call_seconds()
        again_s = side.call_seconds() if call_s > SLOW_COPY_S else call_s
    except MeasurementError:  # It does not return; to call it again would not help.
        raise
    except Exception as error:
        reason = f"it cannot be copied ({type(error).__name__}: {error})"
        if is_out_of_memory(error):
            reason = f"{side.device} has no room for a copy ({shortage_text(error, side.device)})"
    else:
        return _why_too_slow(build_s, call_s, again_s, budget_s), first
    make_room(side)  # only now, since an exception holds what was being built
    return reason, first


def _try_factory(side: LocalSide, budget_s: float) -> tuple[str, _FirstCalls]:
    """Return whether everything that a factory builds is slow, or prepared in its first calls.

    The result is why to build nothing more, or "", and the first calls of what was built first.
    """
    first = _first_calls(side)
    if _is_slow(first, budget_s):
        return _about_slow_calls(first), first
    again = first.preparation and _first_calls(side).preparation
    if again is None:  # what was done once holds for all that it builds
        return "", first
    longer = duration_text(again.seconds)
    return f"the first calls of what it builds take {longer} longer, in every round", first


def _is_slow(calls: _FirstCalls, budget_s: float) -> bool:
    """Return whether calls take so large a share of the budget that none can be spared.

    A first call alone tells nothing; after one that is longer than `SLOW_FIRST_S` there were more.
    """
    return calls.typical_s > max(SLOW_FIRST_S, budget_s * interleaving.LARGE_SHARE)


def _about_slow_calls(calls: _FirstCalls) -> str:
    return f"a call takes {duration_text(calls.typical_s)}; give a larger budget_s"


def _why_too_slow(build_s: float, call_s: float, again_s: float, budget_s: float) -> str:
    if call_s > SLOW_COPY_S and call_s > SLOW_COPY * again_s:
        return (
            f"the first call of a copy takes {duration_text(call_s)}, the second "
            f"{duration_text(again_s)}: every copy would be prepared again"
        )
    seconds = build_s + call_s
    if seconds > max(interleaving.SETTLING_S, budget_s * interleaving.LARGE_SHARE):
        return f"copying and calling it takes {seconds:.2g} s; give a larger budget_s"
    return ""


def _first_calls(side: LocalSide, like: _FirstCalls | None = None) -> _FirstCalls:
    """Call a side until two calls agree, or the first does with those of a copy of it.

    What the first ones took longer is in what it gives, if that is much.
    """
    side.build()
    device = side.devices[0] if side.devices else "cpu"
    before = private_pool_bytes(device)
    seconds = [_call_seconds(side, device)]
    if seconds[0] > SLOW_FIRST_S:
        known = [like.typical_s] if like else []
        while len(seconds) < FIRST_CALLS and not _have_settled(known + seconds):
            seconds.append(_call_seconds(side, device))
    typical = min(seconds)
    extra = sum(each - typical for each in seconds)
    after = private_pool_bytes(device)
    taken = None if before is None or after is None else max(0, after - before)
    is_much = extra > max(SLOW_FIRST_S, SLOW_FIRST * typical) or taken
    return _FirstCalls(
        typical, workload.Preparation(workload.FIRST_CALL, extra, taken) if is_much else None
    )


def _call_seconds(side: LocalSide, device: str) -> float:
    try:
        return side.call_seconds()
    except ModelError as error:
        if not is_out_of_memory(error):
            raise
        shortage = shortage_text(error, device)
        raise ModelError(f"{side.name} does not fit on {device}: {shortage}") from error


def _have_settled(seconds: list[float]) -> bool:
    return len(seconds) > 1 and abs(seconds[-1] - seconds[-2]) <= AGREEMENT * seconds[-1]


# ---------------------------------------------------------------- enough room


def with_room(first: LocalSide, second: LocalSide, run: Callable[[], Result]) -> Result:
    """Run something that needs both sides; where a device is full, with fewer copies of models."""
    while True:
        result, shortage = _attempt(first, second, run)
        if result is not None:
            return result
        make_room(first, second)  # the exception, and what it held, is gone by now
        copied = [
            side for side in (first, second) if side.workload and side.can_rebuild and side.devices
        ]
        if not copied:
            raise ModelError(
                f"{first.name} and {second.name} do not fit on the device together: {shortage}; "
                "give the models smaller inputs, or free memory of the device"
            )
        largest = max(copied, key=_held_bytes)
        largest.stay_as_it_is(f"there is no room for copies of both models ({shortage})")


def _attempt(
    first: LocalSide, second: LocalSide, run: Callable[[], Result]
) -> tuple[Result | None, str]:
    try:
        return run(), ""
    except ModelError as error:
        if not is_out_of_memory(error):
            raise
        device = next(iter((*first.devices, *second.devices)), "cpu")
        return None, shortage_text(error, device)


def make_room(*sides: LocalSide) -> None:
    """Free what was built for these sides, and give it back to the device."""
    for side in sides:
        side.release()
    gc.collect()
    free_unused()


def _held_bytes(side: LocalSide) -> int:
    assert side.workload is not None
    adapter = adapter_for(side.workload.model, side.workload.arguments)
    return sum(each.nbytes for each in adapter.parameters(side.workload.model))


def duration_text(seconds: float) -> str:
    """Write seconds in two digits: ``12 s``, ``0.34 s``."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


# ---------------------------------------------------------------- compare: speed, accuracy and
# memory of a candidate against a baseline

FLOOR, FLOOR_OF_FINISHED = 0.005, 0.01
"""What is smaller may come from where code and arrays lie; more so when nothing is built anew."""
GROWTH_NAMED = 100 << 20
LOST_NAMED, DRIFT_NAMED = 0.1, 0.1
BESIDE_SHARE = 0.5
"""The other timing on a device may take this share of the budget on top of it."""
BESIDE_TOO_SLOW = Failure("exceeds the time budget; increase the budget", "too-slow")
BESIDE_IS_COLD = Failure('with cache="cold" every call is timed alone', "cold-caches")
NAMES = ("baseline", "candidate")

AnySide = LocalSide | ProcessSide


def compare(
    baseline: Any,
    candidate: Any,
    *,
    inputs: Any = None,
    budget_s: float = 2.0,
    factories: bool = False,
    floor: float | None = None,
    band: float = 0.01,
    confidence: float = 0.95,
    precision: float | None = None,
    margin: float = 0.01,
    evidence: bool = True,
    timeout_s: float | None = None,
    cache: str = WARM,
    timing: str = interleaving.LATENCY,
    both_timings: bool | None = None,
    names: Sequence[str] | None = None,
    is_known: Callable[[Estimate], bool] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Time two things in turns, and return whether the candidate is faster, slower or the same.

    The verdict is about time alone; accuracy and outputs stand beside it.

    Each side is a function without arguments, a model (with `inputs`), a pair of a model and its
    inputs, a Workload, a target such as ``"gpt"`` or ``"file.py:factory"``, or an
    :class:`Isolated` target. With `factories` both are functions that build the function to time.
    Models and factories are built anew every 10 ms of measuring, because where things lie in memory
    moves identical code by a percent or more; finished functions cannot be, and have a larger
    `floor`.

    It stops as soon as the verdict is known and the interval within `precision`, if asked for; at
    the latest after about `budget_s`, but never before six rounds; calls that take much of it are
    made no more often than necessary. All interim analyses together err with
    1 - `confidence`. With `evidence`, models are also compared in outputs, accuracy (as
    non-inferiority within `margin`, in the unit of the scores), memory, size on disk, single calls
    and energy, which takes additional time. `timeout_s` interrupts a call that does not return.

    Compiled and captured models are never copied, and setup time, the slow first calls of a
    model included, is no part of the times but in `preparations`. With ``cache="cold"`` the caches
    are emptied before every call, and calls are timed one by one: on a CUDA device the L2 cache is
    overwritten, on a processor more is read than all its caches hold.

    Where calls run on a CUDA device, `timing` says what is timed, both by the wall clock: "latency"
    is one call at a time, with the device synchronised before and after, "throughput" calls in a
    row of which only the last is waited for. Both sides make the same number of single calls, after
    some that are not timed. The other timing and the device time by events stand beside it, with
    `evidence` or where `both_timings` asks for it. On a processor a call is done when it returns:
    both timings are the same there.
    """
    rule = Rule(floor, band, confidence, budget_s, precision)
    _check(margin=margin, timeout_s=timeout_s, seed=seed, cache=cache, timing=timing)
    rng = np.random.default_rng(seed)
    started = perf_counter()
    with ExitStack() as stack:
        first, second = (
            _as_side(each, name, inputs=inputs, factories=factories, timeout_s=timeout_s, rng=rng)
            for each, name in zip((baseline, candidate), _names(names), strict=True)
        )
        for side in (first, second):
            stack.enter_context(side.opened())
        _tell(progress, f"{second.name} against {first.name}: checking")
        agreed = _prepare(first, second, budget_s=budget_s, cache=cache, timing=timing)
        known = Evidence()
        if evidence:
            known = _with_room(first, second, lambda: gather_evidence(first, second, margin=margin))
        found = _time(first, second, rule, is_known=is_known, rng=rng, progress=progress)
        beside, why_alone = None, None
        if evidence if both_timings is None else both_timings:
            beside, why_alone = _time_beside(
                first, second, rule, cache=cache, timed=found.timed, rng=rng, progress=progress
            )
        if evidence:
            _tell(progress, f"{second.name} against {first.name}: memory, size, single calls")
            known = known.completed(first, second, budget_s=budget_s, rng=rng, timed=found.timed)
        environment = _environment(found.watches)
    missing = {_other(timing): why_alone} if why_alone else {}
    result = Comparison(
        baseline_name=first.name,
        candidate_name=second.name,
        rounds=found.timed.rounds,
        rule=rule,
        floor=found.floor,
        alpha=found.timed.alpha,
        pace=found.timed.pace,
        clock=first.clock_name,
        seconds_used=perf_counter() - started,
        accuracy=known.accuracy,
        outputs=known.outputs,
        resources=known.resources,
        calls=known.calls,
        energy=known.energy,
        not_measured={**missing, **known.not_measured},
        environment=environment,
        preparations=(first.preparations, second.preparations),
        cache=cache,
        is_on_device=first.device_timing is not None,
        timing=timing,
        beside=beside,
        device_times=known.device_times,
    )
    notes = (
        *first.notes,
        *second.notes,
        *agreed,
        *known.notes,
        *_notes(result, first, second, grown=found.grown),
        *found.timed.doubts,
        *(note for watch in found.watches for note in watch.notes),
    )
    return result.with_notes(*dict.fromkeys(notes))


# ---------------------------------------------------------------- what was given


def _check(*, margin: float, timeout_s: float | None, seed: int, cache: str, timing: str) -> None:
    check_number("margin", margin, least=0)
    if timeout_s is not None:
        check_number("timeout_s", timeout_s, above=0)
    check_number("seed", seed, least=0)
    if cache not in CACHES:
        raise SettingError(f"cache={cache!r}; there are {' and '.join(CACHES)}")
    if timing not in interleaving.TIMINGS:
        raise SettingError(f"timing={timing!r}; there are {' and '.join(interleaving.TIMINGS)}")


def _as_side(
    given: Any,
    name: str,
    *,
    inputs: Any,
    factories: bool,
    timeout_s: float | None,
    rng: np.random.Generator,
) -> AnySide:
    has_inputs = isinstance(given, Isolated | str | tuple | workload.Workload | WorkloadSide)
    if inputs is not None and has_inputs:
        raise SettingError(
            f"inputs= is for models; the {name} ({type(given).__name__}) has its own inputs"
        )
    if isinstance(given, Isolated):
        return ProcessSide(given, name=name)
    if isinstance(given, WorkloadSide):  # prepared by the caller
        return given
    if isinstance(given, str):
        given = load_workload(given)
    elif isinstance(given, tuple) and len(given) == 2:
        given = _workload(given[0], given[1])
    elif inputs is not None:
        given = _workload(given, inputs)
    if isinstance(given, workload.Workload):
        return WorkloadSide(given, name=name, rng=rng, timeout_s=timeout_s)
    if not callable(given):
        raise SettingError(
            f"the {name} is a {type(given).__name__}; give a function without arguments, a model "
            "with inputs=, a Workload or a target"
        )
    if hasattr(given, "forward") or hasattr(given, "parameters"):
        raise SettingError(
            f"the {name} is a model ({type(given).__name__}); say what to call it with: inputs=x"
        )
    make = given if factories else lambda: given
    return LocalSide(name, make, can_rebuild=factories, rng=rng, timeout_s=timeout_s)


def _workload(model: Any, inputs: Any) -> workload.Workload:
    return workload.Workload(function_name(model, type(model).__name__), model, inputs)


def _names(names: Sequence[str] | None) -> tuple[str, str]:
    if names is None:
        return NAMES
    if isinstance(names, str) or len(names) != 2 or names[0] == names[1]:
        raise SettingError(f"names={names!r}; give two different ones: baseline and candidate")
    return names[0], names[1]


# ---------------------------------------------------------------- before it begins, and timing


def _prepare(
    first: AnySide, second: AnySide, *, budget_s: float, cache: str, timing: str
) -> tuple[str, ...]:
    """Set up both sides, and agree on how they are timed; return notes on that."""
    if cache == COLD and not (first.in_process and second.in_process):
        raise SettingError(
            'cache="cold" is for sides in this process; the caches of others are out of reach'
        )
    for side in (first, second):
        if side.in_process:
            warm_up_side(side, budget_s)
        else:
            side.build()  # only its process knows whether it uses a device
    if first.is_on_device or second.is_on_device:
        for side in (first, second):
            side.time_on_device(timing)
    if first.in_process and second.in_process and cache == COLD:
        return empty_caches_between(first, second)
    return ()


def _other(timing: str) -> str:
    return interleaving.THROUGHPUT if timing == interleaving.LATENCY else interleaving.LATENCY


def _time_beside(
    first: AnySide,
    second: AnySide,
    rule: Rule,
    *,
    cache: str,
    timed: TimedRounds,
    rng: np.random.Generator,
    progress: Progress | None,
) -> tuple[TimedRounds | None, Failure | None]:
    """Time sustained calls beside single ones, or the other way round; or return why not.

    Neither is there on a processor, where both are the same.
    """
    timing = first.device_timing
    if timing is None:
        return None, None
    if cache == COLD:
        return None, BESIDE_IS_COLD
    budget_s = BESIDE_SHARE * rule.budget_s
    calls = interleaving.FEWEST * (
        interleaving.SUSTAINED_CALLS if timing == interleaving.LATENCY else 1
    )
    if calls * sum(timed.pace.call_s) > budget_s:
        return None, BESIDE_TOO_SLOW
    for side in (first, second):
        side.time_on_device(_other(timing))
    try:
        rule = replace(rule, budget_s=budget_s)
        found = _time(first, second, rule, is_known=None, rng=rng, progress=progress)
    finally:
        for side in (first, second):
            side.time_on_device(timing)
    return found.timed, None


@dataclass(frozen=True)
class _Timing:
    """The rounds, the floor that holds for them, and what happened to memory and devices."""

    timed: TimedRounds
    floor: float
    grown: int
    watches: tuple[DeviceWatch, ...]


def _time(
    first: AnySide,
    second: AnySide,
    rule: Rule,
    *,
    is_known: Callable[[Estimate], bool] | None,
    rng: np.random.Generator,
    progress: Progress | None,
) -> _Timing:
    """Take rounds until the answer is known, with fewer copies where a device has no room."""
    watches = tuple(DeviceWatch(device) for device in _devices(first, second))
    memory = process_memory().rss_bytes

    def attempt() -> _Timing:
        is_rebuilt = first.can_rebuild and second.can_rebuild
        usual = FLOOR if is_rebuilt else FLOOR_OF_FINISHED
        floor = usual if rule.floor is None else rule.floor
        timed = time_until_known(
            first,
            second,
            rule,
            is_known=_stopping_rule(rule, floor, is_known),
            rng=rng,
            progress=progress,
            between=lambda: _look(watches),
        )
        return _Timing(timed, floor, process_memory().rss_bytes - memory, watches)

    return _with_room(first, second, attempt)


def _environment(watches: Sequence[DeviceWatch]) -> dict[str, Any]:
    described = describe_environment().to_dict()
    if watches:
        described["devices"] = {each.device: each.to_dict() for each in watches}
    return described


def _with_room(first: AnySide, second: AnySide, run: Callable[[], Result]) -> Result:
    if first.in_process and second.in_process:
        return with_room(first, second, run)
    return run()


def _devices(*sides: AnySide) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device for side in sides for device in side.devices))


def _look(watches: Sequence[DeviceWatch]) -> None:
    for watch in watches:
        watch.look()


# ---------------------------------------------------------------- when to stop, what to doubt


def _stopping_rule(
    rule: Rule, floor: float, is_known: Callable[[Estimate], bool] | None
) -> Callable[[Estimate], bool]:
    def default(ratio: Estimate) -> bool:
        return time_verdict(ratio, floor=floor, band=rule.band) != INCONCLUSIVE

    decided = is_known or default

    def stop(ratio: Estimate) -> bool:
        if not decided(ratio):
            return False
        if rule.precision is None:
            return True
        factor = 1 + rule.precision
        return ratio.high <= ratio.value * factor and ratio.value <= ratio.low * factor

    return stop


def _notes(result: Comparison, first: AnySide, second: AnySide, *, grown: int) -> Iterator[str]:
    fixed = [side.name for side in (first, second) if not side.can_rebuild]
    if fixed:
        yield (
            f"minimum effect {result.floor:.1%}: {' and '.join(fixed)} kept one memory layout, "
            "which alone moves times by a percent or more (give models, targets or factories)"
        )
    if _frameworks(first, second) > 1 and result.environment["threads_in_force"] > 1:
        yield (
            "two frameworks in one process: their idle threads slow each other down; compare "
            "targets with --isolate, or set OMP_NUM_THREADS=1"
        )
    if result.contradiction:
        yield result.contradiction
    if result.displaced_share > LOST_NAMED:
        yield f"preempted in {result.displaced_share:.0%} of the turns; that time is subtracted"
    drift = result.baseline.stability.drift
    if abs(drift) > DRIFT_NAMED:
        yield f"the baseline's time drifted by {drift:+.0%}; ratios are of adjacent calls"
    if result.n < 9:
        yield (
            f"only {result.n} rounds fitted the time budget: the interval is their range; increase "
            "the budget"
        )
    if grown > GROWTH_NAMED:
        yield f"the process grew by {grown >> 20} MiB while timing: possible memory leak"


def _frameworks(*sides: AnySide) -> int:
    """Return how many frameworks compute on the processor for these sides."""
    return len({side.framework for side in sides if side.framework and side.runs_here})


def _tell(progress: Progress | None, text: str) -> None:
    if progress:
        progress.describe(text)
