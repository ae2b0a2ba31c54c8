"""compare: is the candidate faster than the baseline, and still as good?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.comparison.comparison import NOT_SHOWN, Comparison, verdict_of
from tinytorch.comparison.evidence import Evidence, gather_evidence
from tinytorch.comparison.processes import Isolated, ProcessSide
from tinytorch.comparison.rounds import SETTLING_S, Side
from tinytorch.comparison.sequential import Rule, TimeRatio, time_until_known
from tinytorch.comparison.sides import LocalSide, WorkloadSide, function_name
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.memory import process_memory
from tinytorch.workloads.targets import load_workload
from tinytorch.workloads.workload import Workload

__all__ = ["compare"]

FLOOR, FLOOR_OF_FINISHED = 0.005, 0.01
"""What is smaller may come from where code and arrays lie; more so when nothing is built anew."""
BUILDING_SHARE = 1 / 12
"""Building both sides anew must fit so often into the budget, or it is not done."""
GROWTH_NAMED = 100 << 20
LOST_NAMED, DRIFT_NAMED = 0.1, 0.1
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
    names: Sequence[str] | None = None,
    is_known: Callable[[TimeRatio], bool] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Time two things in turns and say whether the candidate is faster, slower or the same.

    The verdict is about time alone; accuracy and outputs stand beside it.

    Each side is a function without arguments, a model (with `inputs`), a pair of a model and its
    inputs, a Workload, a target such as ``"gpt"`` or ``"file.py:factory"``, or an
    :class:`Isolated` target. With `factories` both are functions that build the function to time.
    Models and factories are built anew every 10 ms of measuring, because where things lie in memory
    moves identical code by a percent or more; finished functions cannot be, and have a larger
    `floor`.

    It stops as soon as the verdict is known and the interval within `precision`, if asked for; at
    the latest after about `budget_s`, but never before six rounds. All looks together err with
    1 - `confidence`. With `evidence`, models are also compared in outputs, accuracy (as
    non-inferiority within `margin`, in the unit of the scores), memory, size on disk, single calls
    and energy, which takes time of its own. `timeout_s` interrupts a call that does not return.
    """
    rule = Rule(floor, band, confidence, budget_s, precision)
    _check(margin=margin, timeout_s=timeout_s, seed=seed)
    rng = np.random.default_rng(seed)
    started = perf_counter()
    with ExitStack() as stack:
        first, second = (
            _as_side(each, name, inputs=inputs, factories=factories, timeout_s=timeout_s, rng=rng)
            for each, name in zip((baseline, candidate), _names(names), strict=True)
        )
        for side in (first, second):
            stack.enter_context(_open(side))
        _tell(progress, f"{second.name} against {first.name}: checking")
        for side in (first, second):
            _settle_whether_to_rebuild(side, budget_s)
        known = gather_evidence(first, second, margin=margin) if evidence else Evidence()
        is_rebuilt = first.can_rebuild and second.can_rebuild
        floor_used = (FLOOR if is_rebuilt else FLOOR_OF_FINISHED) if floor is None else floor
        memory = process_memory().rss_bytes
        timed = time_until_known(
            first,
            second,
            rule,
            is_known=_stopping_rule(rule, floor_used, is_known),
            rng=rng,
            progress=progress,
        )
        grown = process_memory().rss_bytes - memory
        if evidence:
            _tell(progress, f"{second.name} against {first.name}: memory, size, single calls")
            known = known.completed(first, second, budget_s=budget_s, rng=rng)
        environment = describe_environment().to_dict()
    result = Comparison(
        baseline_name=first.name,
        candidate_name=second.name,
        rounds=timed.rounds,
        rule=rule,
        floor=floor_used,
        alpha=timed.alpha,
        pace=timed.pace,
        clock=first.clock.name if isinstance(first, LocalSide) else "wall",
        seconds_used=perf_counter() - started,
        accuracy=known.accuracy,
        outputs=known.outputs,
        resources=known.resources,
        calls=known.calls,
        energy=known.energy,
        not_measured=known.not_measured,
        environment=environment,
    )
    notes = (
        *first.notes,
        *second.notes,
        *known.notes,
        *_notes(result, first, second, is_rebuilt=is_rebuilt, grown=grown),
        *timed.doubts,
    )
    return result.with_notes(*dict.fromkeys(notes))


# ---------------------------------------------------------------- what was given


def _check(*, margin: float, timeout_s: float | None, seed: int) -> None:
    if not 0 <= margin < math.inf:
        raise SettingError(f"margin={margin}; it must be zero or a positive number")
    if timeout_s is not None and not 0 < timeout_s < math.inf:
        raise SettingError(f"timeout_s={timeout_s}; it must be positive, or None for no limit")
    if seed < 0:
        raise SettingError(f"seed={seed!r}; it must be a whole number from 0 on")


def _as_side(
    given: Any,
    name: str,
    *,
    inputs: Any,
    factories: bool,
    timeout_s: float | None,
    rng: np.random.Generator,
) -> AnySide:
    if inputs is not None and isinstance(given, Isolated | str | tuple | Workload):
        raise SettingError(
            f"inputs= is for models; the {name} ({type(given).__name__}) has inputs of its own"
        )
    if isinstance(given, Isolated):
        return ProcessSide(given, name=name)
    if isinstance(given, str):
        given = load_workload(given)
    elif isinstance(given, tuple) and len(given) == 2:
        given = _workload(given[0], given[1])
    elif inputs is not None:
        given = _workload(given, inputs)
    if isinstance(given, Workload):
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


def _workload(model: Any, inputs: Any) -> Workload:
    if isinstance(inputs, dict):
        return Workload(type(model).__name__, model, (), keywords=inputs)
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return Workload(function_name(model, type(model).__name__), model, arguments)


def _names(names: Sequence[str] | None) -> tuple[str, str]:
    if names is None:
        return NAMES
    if isinstance(names, str) or len(names) != 2 or names[0] == names[1]:
        raise SettingError(f"names={names!r}; give two different ones: baseline and candidate")
    return names[0], names[1]


@contextmanager
def _open(side: AnySide) -> Iterator[None]:
    if isinstance(side, WorkloadSide):
        with side.environment():
            yield
    elif isinstance(side, ProcessSide):
        try:
            yield
        finally:
            side.close()
    else:
        yield


def _settle_whether_to_rebuild(side: AnySide, budget_s: float) -> None:
    """See whether a model can be copied, and fast enough to do it again and again."""
    if not isinstance(side, WorkloadSide):
        return
    try:
        side.build()
        side.call()
        started = perf_counter()
        side.release()
        side.build()
        side.call()
        seconds = perf_counter() - started
    except MeasurementError:  # It does not return; to call it again would not help.
        raise
    except Exception as error:
        side.stay_as_it_is(f"it cannot be copied ({type(error).__name__}: {error})")
        return
    if seconds > max(SETTLING_S, budget_s * BUILDING_SHARE):
        side.stay_as_it_is(f"copying and calling it takes {seconds:.2g} s; give a larger budget_s")


# ---------------------------------------------------------------- when to stop, what to doubt


def _stopping_rule(
    rule: Rule, floor: float, is_known: Callable[[TimeRatio], bool] | None
) -> Callable[[TimeRatio], bool]:
    def default(ratio: TimeRatio) -> bool:
        return verdict_of(ratio, floor=floor, band=rule.band) != NOT_SHOWN

    decided = is_known or default

    def stop(ratio: TimeRatio) -> bool:
        if not decided(ratio):
            return False
        if rule.precision is None:
            return True
        factor = 1 + rule.precision
        return ratio.high <= ratio.value * factor and ratio.value <= ratio.low * factor

    return stop


def _notes(
    result: Comparison, first: Side, second: Side, *, is_rebuilt: bool, grown: int
) -> Iterator[str]:
    if not is_rebuilt:
        fixed = [side.name for side in (first, second) if not side.can_rebuild]
        yield (
            f"{' and '.join(fixed)} kept the same memory all the time, which alone can make "
            f"identical code differ by a percent or more; differences below {result.floor:.1%} "
            "do not count (give factories, models or targets to have them built anew)"
        )
    if _frameworks(first, second) > 1 and result.environment["threads_in_force"] > 1:
        yield (
            "the sides belong to two frameworks, whose idle threads slow each other down in one "
            "process; compare targets with --isolate, or set OMP_NUM_THREADS=1"
        )
    if result.contradiction:
        yield result.contradiction
    if result.displaced_share > LOST_NAMED:
        yield (
            f"other processes had the core during {result.displaced_share:.0%} of the turns; "
            "that time is taken off"
        )
    drift = result.baseline.stability.drift
    if abs(drift) > DRIFT_NAMED:
        yield f"the baseline's time drifted by {drift:+.0%}; ratios are of neighbours in time"
    if result.n < 9:
        yield (
            f"there was time for {result.n} rounds only: building both sides and calling them "
            "takes that long; the interval is as wide as they are apart, give a larger budget"
        )
    if grown > GROWTH_NAMED:
        yield f"the process grew by {grown >> 20} MiB while timing: something may leak"


def _frameworks(*sides: Side) -> int:
    """Give how many frameworks compute on the processor for these sides."""
    on_processor = [side for side in sides if isinstance(side, WorkloadSide) and side.runs_here]
    return len({side.adapter.name for side in on_processor})


def _tell(progress: Progress | None, text: str) -> None:
    if progress:
        progress.describe(text)
