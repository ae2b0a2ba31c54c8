"""What happens before two sides are timed: first calls, whether copies can be made, enough room."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tinytorch.comparison.rounds import LARGE_SHARE, SETTLING_S
from tinytorch.comparison.sides import LocalSide, WorkloadSide, seconds_of
from tinytorch.errors import MeasurementError, ModelError
from tinytorch.measure.device_memory import (
    free_unused,
    is_out_of_memory,
    private_pool_bytes,
    shortage_text,
)
from tinytorch.workloads.preparation import (
    FIRST_CALL,
    Preparation,
    preparations_of,
    prepares_itself,
)

__all__ = ["duration_text", "settle", "with_room"]

SLOW_FIRST_S, SLOW_FIRST = 0.1, 5.0
"""A first call that takes so much longer than the next, and so many times, prepares something."""
FIRST_CALLS = 6
"""After so many calls a model is as fast as it gets: some compile in the first call, record in the
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
    preparation: Preparation | None


def settle(side: LocalSide, budget_s: float) -> None:
    """Call a side until it is as fast as it gets, and find out whether it can be built anew.

    What its first calls took longer, and what was done to its model before, is in
    `side.preparations` then: it is no part of any time.
    """
    model = side.workload.model if isinstance(side, WorkloadSide) else None
    before, first = preparations_of(model), None
    if side.can_rebuild:
        if isinstance(side, WorkloadSide):
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
    declared = preparations_of(model)
    # What a model says itself about its first call need not be estimated.
    estimated = (seen,) if seen and declared == before else ()
    side.preparations = (*declared, *estimated)
    side.release()


def _why_not_copied(model: Any, declared: tuple[Preparation, ...]) -> str:
    if declared:
        done = " and ".join(
            f"{each.what} once in {duration_text(each.seconds)}" for each in declared
        )
        return f"it was {done}, which a copy would have to do again"
    if prepares_itself(model):
        return "it is prepared when it is first called, and a copy would be prepared again"
    return ""


def _try_copies(side: WorkloadSide, budget_s: float) -> tuple[str, _FirstCalls | None]:
    """See whether a model can be copied, and fast enough to do it again and again.

    Gives why not, and the first calls of the first copy.
    """
    first = None
    if side.known_call_s:
        known = _FirstCalls(side.known_call_s, None)
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
    """See whether everything that a factory builds is slow, or prepared in its first calls.

    Gives why it should build nothing more, and the first calls of the first that it built.
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
    """Say whether calls take so much of the budget that none can be spared.

    A first call alone tells nothing; after one that is longer than `SLOW_FIRST_S` there were more.
    """
    return calls.typical_s > max(SLOW_FIRST_S, budget_s * LARGE_SHARE)


def _about_slow_calls(calls: _FirstCalls) -> str:
    return f"a call takes {duration_text(calls.typical_s)}; give a larger budget_s"


def _why_too_slow(build_s: float, call_s: float, again_s: float, budget_s: float) -> str:
    if call_s > SLOW_COPY_S and call_s > SLOW_COPY * again_s:
        return (
            f"the first call of a copy takes {duration_text(call_s)}, the second "
            f"{duration_text(again_s)}: every copy would be prepared again"
        )
    seconds = build_s + call_s
    if seconds > max(SETTLING_S, budget_s * LARGE_SHARE):
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
    return _FirstCalls(typical, Preparation(FIRST_CALL, extra, taken) if is_much else None)


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
            side
            for side in (first, second)
            if isinstance(side, WorkloadSide) and side.can_rebuild and side.devices
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


def _held_bytes(side: WorkloadSide) -> int:
    return sum(each.nbytes for each in side.adapter.parameters(side.workload.model))


def duration_text(seconds: float) -> str:
    """Write seconds in two digits: ``12 s``, ``0.34 s``."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
