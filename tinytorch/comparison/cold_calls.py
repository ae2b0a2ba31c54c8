"""Sides whose every call finds caches that hold nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from tinytorch.comparison.sides import LocalSide, WorkloadSide
from tinytorch.measure.clocks import reading_overhead
from tinytorch.measure.cold_cache import cache_flush
from tinytorch.measure.cores import usable_cores

__all__ = ["empty_caches_between"]

OVERHEAD_NAMED = 0.01
"""The share of a call from which on the cost of reading the clock is named."""


def empty_caches_between(*sides: LocalSide) -> tuple[str, ...]:
    """Let caches be emptied before each call of these sides; notes say what is not as it should be.

    For a model these are the caches of the device that it is on. A function may compute anywhere:
    for it, those of the processor and of all devices that the program uses.
    """
    flushes: dict[str, Callable[[], None]] = {}
    notes = []
    for side in sides:
        places = _places(side)
        for place in places:
            flushes.setdefault(place, cache_flush(place))
        side.empty_caches(partial(_call_all, [flushes[place] for place in places]))
        notes += _about_short_calls(side)
    if "torch" not in sys.modules and usable_cores() > 1:
        notes.append("only the caches of one core, and those that it shares, were emptied")
    return tuple(notes)


def _places(side: LocalSide) -> tuple[str, ...]:
    on_device = isinstance(side, WorkloadSide) and bool(side.devices)
    return side.devices if on_device else ("cpu", *side.devices)


def _about_short_calls(side: LocalSide) -> list[str]:
    if side.slow_call_s:
        return []
    side.build()
    seconds = min(side.time(1).seconds for _ in range(2))
    side.release()
    if seconds >= reading_overhead(side.clock) / OVERHEAD_NAMED:
        return []
    return [
        f"calls of {side.name} are so short that reading the clock is more than "
        f"{OVERHEAD_NAMED:.0%} of their time; with cold caches each is timed alone"
    ]


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()
