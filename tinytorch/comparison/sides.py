"""What can be compared: finished functions, functions that build them, models with inputs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal

import numpy as np

from tinytorch.comparison.outputs import attention_mask_of
from tinytorch.comparison.resources import Resources
from tinytorch.errors import MeasurementError, ModelError, TinyTorchError
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT, Reading, Stopwatch
from tinytorch.measure.timing import (
    WALL,
    Clock,
    ColdClock,
    DeviceClock,
    can_limit_time,
    fitting_clock,
    reading_overhead,
    time_limit,
    used_devices,
    wait_for_devices,
)
from tinytorch.measure.worker import Forks, ending_copies
from tinytorch.models.adapter import Adapter, Array, adapter_for
from tinytorch.models.workload import Preparation, Workload, call_model

HIDES_CLOCK = 1000
"""A turn is at least this many times longer than reading the clock takes."""
PADS, PAD_BYTES = 8, (64, 1 << 17)
"""This many blocks, of sizes between these, are allocated before building: otherwise freed memory
would be reused in the same places."""

FLUSHES = 3
"""The fastest of this many is how long emptying the caches takes."""

CALLS_OF_STAGE = 30
"""Measuring single calls, or memory, takes about so many calls however small the budget is."""

LAZY = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)

Function = Callable[[], object]
Arrays = tuple[Array, ...]


@dataclass(frozen=True)
class Known:
    """What is known of a model that was called before, so that slow calls are not made again.

    `outputs` are the arrays in what it returned, `call_s` is how long a call takes, and `resources`
    is what it needs.
    """

    outputs: Arrays | None = None
    call_s: float = 0.0
    resources: Resources | None = None


class LocalSide:
    """A function in this process, finished or built anew for every round.

    `workload` is None for a function, and `copy_difference` is the difference between a model and
    its copy, once the first was made.
    """

    in_process: Literal[True] = True
    workload: Workload | None = None
    copy_difference: str | None = None
    known = Known()
    framework = ""
    device = "cpu"
    warms_itself = False
    untimed_call_s = 0.0
    slow_call_s = 0.0
    device_timing: str | None = None

    def __init__(
        self,
        name: str,
        make: Callable[[], Function],
        *,
        can_rebuild: bool,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self.can_rebuild = can_rebuild
        self.notes: list[str] = []
        self.preparations: tuple[Preparation, ...] = ()
        self._flush: Callable[[], None] | None = None
        self._make = make
        self._function: Function | None = None
        self._watch = Stopwatch(clock or fitting_clock())
        self._rng = rng or np.random.default_rng()
        self._pads: list[Any] = []
        self._process = os.getpid()
        self._is_proven = False
        self._is_forking = False
        if timeout_s is not None and not can_limit_time():
            self.notes.append(
                f"{name} could not be interrupted: timeout_s works in the main thread, on Unix"
            )

    @property
    def clock(self) -> Clock:
        clock = self._watch.clock
        return clock if self._flush is None else ColdClock(clock, self._flush)

    def use_clock(self, clock: Clock) -> None:
        """Time with another clock from now on."""
        self._watch = Stopwatch(clock)

    def time_on_device(self, timing: str) -> None:
        """Time calls that run on a device from now on: single ones, or sustained ones."""
        self.device_timing = timing
        self.use_clock(DeviceClock(is_sustained=timing == THROUGHPUT))

    def empty_caches(self, flush: Callable[[], None]) -> None:
        """Empty the caches by `flush` before every timed call, outside of its time."""
        self._flush = flush
        self.untimed_call_s = min(seconds_of(flush) for _ in range(FLUSHES))

    def stay_as_it_is(self, reason: str) -> None:
        """Time what was built last from now on, and build nothing anew."""
        self.can_rebuild = False
        self.notes.append(f"{self.name} is not built anew for every round: {reason}")

    def call_seconds(self) -> float:
        """Call it once, with all checks, and give the seconds until the devices are done too."""
        return seconds_of(self.call)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that it may compute on beside the processor."""
        return tuple(f"cuda:{index}" for index in used_devices())

    @property
    def is_on_device(self) -> bool:
        return bool(self.devices)

    @property
    def places(self) -> tuple[str, ...]:
        """Where it computes; a function may do so on the processor and on any device."""
        return ("cpu", *self.devices)

    @property
    def clock_name(self) -> str:
        return self.clock.name

    def event_clock(self) -> Clock | None:
        """Return the clock of the device that a model runs on, or None."""
        return None

    def opened(self) -> AbstractContextManager[None]:
        """Return what surrounds everything that is done with it."""
        return nullcontext()

    @property
    def runs_here(self) -> bool:
        return self.clock.is_disturbed_by_host and self.device_timing is None

    @property
    def least_turn_s(self) -> float:
        # Waiting for a device is part of the latency, so only the clock itself is to be hidden.
        clock = WALL if self.device_timing == LATENCY else self.clock
        return HIDES_CLOCK * reading_overhead(clock)

    def release(self) -> None:
        """Free what was built, if it can be built anew."""
        if self.can_rebuild:
            self._function = None
            self._pads.clear()

    def build(self) -> None:
        """Make the function, unless it is finished already."""
        if self._function is not None and not self.can_rebuild:
            return
        self.release()
        limit = time_limit(self.timeout_s, f"{self.name} (building)")
        with self.naming_failures("could not be built"), limit:
            if self.can_rebuild:
                low, high = np.log2(PAD_BYTES)
                sizes = 2 ** self._rng.uniform(low, high, PADS)
                self._pads = [np.empty(int(size), np.uint8) for size in sizes]
            self._function = self._make()
        if not callable(self._function):
            raise ModelError(
                f"{self.name} built a {type(self._function).__name__}, which cannot be called; "
                "a factory returns the function that is to be timed"
            )
        if self._is_forking:
            self._function = ending_copies(self._function)

    def call(self) -> Any:
        """Call it once and give what it returns."""
        if self._function is None:
            self.build()
        result = self._called()
        if any(is_lazy(result) for is_lazy in LAZY):
            if inspect.iscoroutine(result):
                result.close()
            raise ModelError(
                f"{self.name} returned a {type(result).__name__}, which has computed nothing yet; "
                "compare functions that run it to the end"
            )
        self._is_proven = True
        return result

    def _called(self) -> Any:
        assert self._function is not None
        limit = time_limit(self.timeout_s, self.name)
        with self.naming_failures("raised"), limit, self._watching_forks():
            return self._function()

    def call_untested(self) -> Any:
        """Call it once without the checks that take longer than some functions."""
        assert self._function is not None
        try:
            return self._function()
        except (Exception, SystemExit) as error:
            raise self._failure("raised", error) from error

    def time(self, loops: int, *, before: int = 0) -> Reading:
        """Call it `loops` times, after some calls `before` that are not timed."""
        if not self._is_proven:
            self.call()
        function = self._function
        assert function is not None
        if self.timeout_s is not None:
            with time_limit(self.timeout_s, self.name):
                return self._timed(function, loops, before)
        return self._timed(function, loops, before)

    def _timed(self, function: Function, loops: int, before: int) -> Reading:
        """Time calls, guarded without context managers: these take as long as some functions."""
        forks = Forks.count
        try:
            for _ in range(before):
                function()
            reading = self._read(function, loops)
        except (Exception, SystemExit) as error:
            raise self._failure("raised", error) from error
        finally:
            if os.getpid() != self._process:
                os._exit(0)
        if Forks.count > forks:
            self._note_forks()
        return reading

    def _read(self, function: Function, loops: int) -> Reading:
        if self._flush is None:
            return self._watch.time(function, loops)
        seconds = lost_s = 0.0
        for _ in range(loops):
            self._flush()
            reading = self._watch.time(function, 1)
            seconds, lost_s = seconds + reading.seconds, lost_s + reading.lost_s
        return Reading(seconds, lost_s)

    def outputs(self) -> Arrays:
        """Call it once and return the arrays in what it returns."""
        return self.outputs_and_seconds()[0]

    def outputs_and_seconds(self) -> tuple[Arrays, float]:
        """Call it once and return the arrays in what it returns, and the seconds of the call."""
        self.build()
        started = perf_counter()
        output = self.call()
        self.wait_for_device()
        seconds = perf_counter() - started
        return adapter_for(None, (output,)).arrays(output), seconds

    def scores(self, measured_by: Workload | None = None) -> tuple[Array | None, str]:
        """Return the score of each held-out example and the metric; a function has none."""
        return None, ""

    def attention_mask(self) -> Array | None:
        """Return which positions of the inputs count, (batch, sequence); None for all."""
        return None

    def input_shapes(self) -> list[tuple[int, ...]] | None:
        """Return the shapes of what a model is called with, or None where that is not known."""
        return None

    def wait_for_device(self) -> None:
        """Return when every device has done what it was given."""
        wait_for_devices(used_devices())

    @contextmanager
    def naming_failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            raise self._failure(what, error) from error

    def _failure(self, what: str, error: BaseException) -> TinyTorchError:
        """Return the error that names the side; a timeout is no failure of a model."""
        if isinstance(error, MeasurementError):
            return error.about(self.name)
        kind = "" if isinstance(error, ModelError) else f"{type(error).__name__}: "
        return ModelError(f"{self.name} {what}: {kind}{error}").about(self.name)

    @contextmanager
    def _watching_forks(self) -> Iterator[None]:
        """End a copy of this process that a function leaves behind: it would measure as well."""
        before = Forks.count
        try:
            yield
        finally:
            if os.getpid() != self._process:
                os._exit(0)
        if Forks.count > before:
            self._note_forks()

    def _note_forks(self) -> None:
        if not self._is_forking:
            self._is_forking = True
            self.notes.append(
                f"{self.name} starts other processes; only what it waits for is in its time"
            )
            assert self._function is not None
            self._function = ending_copies(self._function)


class WorkloadSide(LocalSide):
    """A workload in this process: its model and inputs are copied for every round.

    Who has called the model before may say what is `known` of it.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        name: str,
        rng: np.random.Generator | None = None,
        timeout_s: float | None = None,
        known: Known = Known(),
    ) -> None:
        self.workload: Workload = workload
        self.known = known
        self.adapter: Adapter = adapter_for(workload.model, workload.arguments)
        self.device = workload.device
        self.framework = self.adapter.name
        super().__init__(
            name,
            self._copied,
            can_rebuild=True,
            clock=self.adapter.run_clock(self.device),
            rng=rng,
            timeout_s=timeout_s,
        )
        self.notes += workload.notes

    @property
    def devices(self) -> tuple[str, ...]:
        return (self.device,) if self.device.startswith("cuda") else ()

    @property
    def places(self) -> tuple[str, ...]:
        return self.devices or ("cpu",)

    def event_clock(self) -> Clock | None:
        """Return the clock of the device that the model runs on, or None."""
        return self.adapter.event_clock(self.device)

    def stay_as_it_is(self, reason: str) -> None:
        """Time the model itself from now on, not copies of it."""
        self.release()
        super().stay_as_it_is(reason)
        self._make = lambda: self.workload.run

    def scores(self, measured_by: Workload | None = None) -> tuple[Array | None, str]:
        """Return the score of each held-out example, and what their mean is called.

        A model without an `evaluate` of its own is scored by that of `measured_by`.
        """
        own = self.workload
        judge = measured_by if own.evaluate is None and measured_by is not None else own
        if judge.evaluate is None:
            return None, ""
        # All held-out examples take longer than one call.
        limit_s = None if self.timeout_s is None else CALLS_OF_STAGE * self.timeout_s
        limit = time_limit(limit_s, f"{self.name} (evaluate)")
        with self.naming_failures("could not be evaluated"), limit:
            return np.asarray(judge.evaluate(own.model)), judge.metric

    def attention_mask(self) -> Array | None:
        """Return which positions of the inputs count, (batch, sequence); None for all."""
        return attention_mask_of(self.workload)

    def input_shapes(self) -> list[tuple[int, ...]] | None:
        """Return the shapes of what the model is called with."""
        return [each.shape for each in self.adapter.arrays(self.workload.arguments)]

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Build no graph, and restore the model's modes afterwards."""
        with ExitStack() as stack:
            stack.enter_context(self.adapter.preserving(self.workload.model))
            stack.enter_context(self.adapter.without_gradients())
            yield

    def _called(self) -> Any:
        """Call the model once; when it raises, say in which layer."""
        try:
            return super()._called()
        except ModelError:
            limit = time_limit(self.timeout_s, self.name)
            naming_layers = self.adapter.naming_failures(self.workload.model)
            with self.naming_failures("raised"), limit, naming_layers:
                self.workload.run()
            raise

    def _copied(self) -> Function:
        workload = self.workload
        model = self.adapter.clone(workload.model)
        if self.copy_difference is None:  # what copying changes, it changes each time
            self.copy_difference = self.adapter.copy_difference(workload.model, model)
        inputs = self.adapter.copy_inputs(workload.inputs)
        names, values = tuple(workload.keywords), tuple(workload.keywords.values())
        keywords = dict(zip(names, self.adapter.copy_inputs(values), strict=True))
        return partial(call_model, model, *inputs, **keywords)


def seconds_of(function: Callable[[], object]) -> float:
    """Call a function once and give the seconds until all devices are done too."""
    wait_for_devices(used_devices())
    started = perf_counter()
    function()
    wait_for_devices(used_devices())
    return perf_counter() - started


def function_name(function: Any, otherwise: str) -> str:
    """Return the name of a function, or `otherwise` for lambdas and the like."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return otherwise if name in ("<lambda>", "function", "method") or "<lambda>" in name else name
