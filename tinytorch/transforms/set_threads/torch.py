"""Racing numbers of threads, and calling a model with the winner. Imported after torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock, local
from typing import Any

import numpy as np
import torch
from torch import nn

from tinytorch.comparison.outputs import attention_mask_of, compare_outputs
from tinytorch.comparison.sequential import Raced, race
from tinytorch.errors import TinyTorchError, first_line
from tinytorch.measure.environment import thread_limit
from tinytorch.measure.timing import WALL
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import WrappedModel, why_no_module
from tinytorch.models.workload import Workload, call_model
from tinytorch.transforms.plan import Gain, Plan, Step
from tinytorch.transforms.set_threads import SetThreads
from tinytorch.transforms.support.torch import ROUNDING, run_once, try_change, why_unlike

HOPELESS = 3.0
"""A number that takes this many times as long as the fastest at first is not timed further."""
SETTINGS_TIMED = 200
SAME_BYTES = "the same parameters are held"

Call = Callable[[], object]
ThreadRace = Raced[int]
"""Seconds per call with each number of threads; the default is the present one."""


class ThreadedModel(WrappedModel):
    """A model that is called with its own number of threads; afterwards the old one is back."""

    def __init__(self, model: nn.Module, threads: int) -> None:
        super().__init__(model)
        self.threads = threads

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model with `threads` threads."""
        with _threads(self.threads):
            return self.model(*inputs, **keywords)

    def extra_repr(self) -> str:
        return f"threads={self.threads}"


class _Inside:
    """The calls that run with a number of threads of their own just now.

    Each Python thread has its number, which it takes from the process when it first computes. One
    that does so while another is in here would take that one's number, and keep it for good.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers: Counter[int] = Counter()
        self._outside = 0
        self._known = local()

    def enter(self, number: int) -> int:
        """Count a call, and give the number of threads to come back to."""
        with self._lock:
            before = torch.get_num_threads()
            if not self._numbers.total():
                self._outside = before
            elif not hasattr(self._known, "is_here") and self._numbers[before]:
                before = self._outside
            self._known.is_here = True
            self._numbers[number] += 1
            torch.set_num_threads(number)
        return before

    def leave(self, number: int, before: int) -> None:
        with self._lock:
            self._numbers[number] -= 1
            torch.set_num_threads(before)


INSIDE = _Inside()


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = INSIDE.enter(number)
    try:
        yield
    finally:
        INSIDE.leave(number, before)


def table_of(race: ThreadRace) -> tuple[str, ...]:
    """Return for each number what was measured."""
    lines = []
    for number, values in sorted(race.times.items()):
        line = f"{_counted(number)}: {float(np.median(values)) * 1e3:.3g} ms a call"
        if number == race.default:
            line += " (the present number)"
        else:
            found = race.ratio(number)
            line += f", {found.value:.2f} times ({found.low:.2f} to {found.high:.2f})"
        lines.append(f"{line}, n={len(values)}")
    return (*lines, *(f"{_counted(n)}: {why}" for n, why in sorted(race.left_out.items())))


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: SetThreads) -> Any:
    """Return the copy of the model, called with this number of threads.

    A plan may be carried out in another process, such as one that loads a saved model. A number
    that was found by measuring is cut to the limit there; one that was asked for is not.
    """
    number = plan.steps[0].settings["threads"]
    if settings.threads is None:
        number = min(number, thread_limit(torch.get_num_threads()))
    return ThreadedModel(model, number)


def plan_torch(workload: Workload, settings: SetThreads) -> Plan:
    """Race the numbers of threads that make sense, or the one that was asked for."""
    reason = _why_not(workload) or _why_nothing_to_choose(settings.threads)
    if reason:
        return settings.skipping(reason)
    numbers = thread_numbers() if settings.threads is None else [settings.threads]
    try:
        race = race_threads(workload, numbers, budget_s=settings.budget_s)
    except Exception as error:  # a model may raise anything
        return settings.skipping(first_line(error))
    chosen = race.fastest if settings.threads is None else settings.threads
    if chosen == race.default:
        reason = f"no other number is conclusively faster than the present {race.default}"
        return settings.skipping(reason, notes=table_of(race))
    if chosen not in race.times:  # it was asked for, and its outputs are not those of the model
        return settings.skipping(race.left_out[chosen], notes=table_of(race))
    trial = try_change(workload, lambda model: ThreadedModel(model, chosen), tolerance=ROUNDING)
    if not trial.works:
        return settings.skipping(trial.reason, notes=table_of(race))
    return _plan(settings, race, chosen)


def _plan(settings: SetThreads, race: ThreadRace, chosen: int) -> Plan:
    ratio, rounds = race.ratio(chosen), len(race.times[chosen])
    basis = f"measured in turns, {rounds} rounds, against {_counted(race.default)}"
    why = f"{ratio.value:.2f} times the time with {_counted(race.default)}"
    step = Step("", f"called with {_counted(chosen)}", why, {"threads": chosen})
    cost = (
        f"setting the number and putting it back takes {setting_cost(chosen) * 1e6:.2g} us a call"
    )
    return settings.planned(
        (step,),
        speedup=Gain(**vars(ratio.inverse), basis=basis),
        not_predicted={"shrinkage": SAME_BYTES},
        changes_process=f"sets {_counted(chosen)} for the whole process while it is called",
        notes=(*table_of(race), cost),
    )


def race_threads(workload: Workload, numbers: Sequence[int], *, budget_s: float) -> ThreadRace:
    """Check the outputs with each number of threads, then let those that are right take turns."""
    adapter = TorchAdapter()
    present = torch.get_num_threads()
    with adapter.preserving(workload.model):
        model = adapter.clone(workload.model)
        every = list(dict.fromkeys([present, *numbers]))
        calls, left_out = _checked(adapter, workload, model, every)
        if present not in calls:
            raise TinyTorchError(left_out[present])
        with adapter.without_gradients():
            found = race(
                calls,
                default=present,
                rng=np.random.default_rng(0),
                budget_s=budget_s,
                hopeless=HOPELESS,
                kept=every if len(numbers) == 1 else (present,),
                warmed_below_s=math.inf,  # the turn before had other threads to wake or to end
            )
    return replace(found, left_out={**found.left_out, **left_out})


def _checked(
    adapter: TorchAdapter, workload: Workload, model: Any, numbers: Sequence[int]
) -> tuple[dict[int, Call], dict[int, str]]:
    """Return the call with each number of threads, if its outputs are those of the present one."""
    calls: dict[int, Call] = {}
    left_out: dict[int, str] = {}
    expected = run_once(adapter, workload, adapter.clone(workload.model))
    mask = attention_mask_of(workload)
    for number in numbers:
        outputs = run_once(adapter, workload, ThreadedModel(adapter.clone(model), number))
        found = compare_outputs(expected, outputs, mask=mask)
        reason = why_unlike(found, ROUNDING)
        if reason:
            left_out[number] = reason
        else:
            calls[number] = _call(adapter, workload, ThreadedModel(model, number))
    return calls, left_out


def _call(adapter: TorchAdapter, workload: Workload, model: Any) -> Call:
    inputs = adapter.copy_inputs(workload.inputs)
    names, values = tuple(workload.keywords), tuple(workload.keywords.values())
    keywords = dict(zip(names, adapter.copy_inputs(values), strict=True))
    return lambda: call_model(model, *inputs, **keywords)


def thread_numbers() -> list[int]:
    """Return 1, 2, 4, ... and the most threads that the user lets the process have."""
    most = thread_limit(torch.get_num_threads())
    return sorted({2**power for power in range(most.bit_length())} | {most})


def setting_cost(threads: int) -> float:
    """Measure the seconds that it takes to set a number of threads and to put the old one back."""

    def set_and_put_back() -> None:
        with _threads(threads):
            pass

    return WALL.time(set_and_put_back, SETTINGS_TIMED) / SETTINGS_TIMED


def _why_not(workload: Workload) -> str:
    reason = why_no_module(workload.model)
    if reason:
        return reason
    try:
        device = TorchAdapter().device(workload.model, ())
    except TinyTorchError as error:
        return str(error)
    own = {each.threads for each in workload.model.modules() if isinstance(each, ThreadedModel)}
    if own:
        return f"it is called with its own number already: {_counted(min(own))}"
    if device != "cpu":
        return f"it runs on {device}, where the threads of the processor do not compute"
    return ""


def _why_nothing_to_choose(threads: int | None) -> str:
    present = torch.get_num_threads()
    if threads == present:
        return f"PyTorch uses {_counted(present)} already"
    if threads is None and thread_numbers() == [present]:
        return "this process may use 1 thread, by its settings or its cores: nothing to choose"
    return ""


def _counted(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
