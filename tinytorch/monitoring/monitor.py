"""Monitor: what a model does in a service, for months, without being noticed."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from json import dumps
from math import log
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tinytorch.core.files import write_atomically
from tinytorch.errors import check_number, first_line
from tinytorch.monitoring.changes import Change, ChangeDetector, Minute
from tinytorch.monitoring.histogram import Distribution, Histogram
from tinytorch.monitoring.reference import Calls
from tinytorch.monitoring.sampling import (
    LayerClock,
    Probe,
    Replaced,
    Sample,
    Watched,
    check_watchable,
    shape_of,
    size_class,
)
from tinytorch.monitoring.snapshot import (
    MinuteSummary,
    SampledLayer,
    ShapeCount,
    SizeBin,
    Snapshot,
    read_snapshot,
)

if TYPE_CHECKING:
    from tinytorch.monitoring.prometheus import Metrics

TICK_S, MINUTE_S = 1.0, 60.0
MOST_SHAPES = 16
"""Shapes that are counted apart in a size class; the others are counted together."""
MOST_WAITING, MOST_OF_A_MINUTE = 1000, 600
"""Sampled calls that wait to be read, and those of a minute that are judged."""
REMEMBERED_MINUTES = 180
NOTHING = Distribution()
logger = logging.getLogger("tinytorch.monitoring")
_current: ContextVar[Request | None] = ContextVar("tinytorch_request", default=None)
_monitors: weakref.WeakSet[Monitor] = weakref.WeakSet()


class Request:
    """One request of a service, from its arrival to its answer; works with `async with`, too."""

    __slots__ = ("_begun", "_monitor", "_queued_s", "_token")

    def __init__(self, monitor: Monitor, queued_s: float) -> None:
        self._monitor = monitor
        self._begun = perf_counter() - queued_s
        self._queued_s: float | None = None
        self._token: Token[Request | None] | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        monitor = self._monitor
        with monitor._lock:
            monitor._in_flight = now = monitor._in_flight + 1
            if now > monitor._most_in_flight:
                monitor._most_in_flight = now
        if monitor._thread is None:
            monitor._start_thread()
        return self

    def __exit__(self, *error: object) -> None:
        seconds, monitor = perf_counter() - self._begun, self._monitor
        try:
            if self._token is not None:
                _current.reset(self._token)
        except ValueError:
            pass  # A generator may end in another context than it began in.
        try:
            with monitor._lock:
                monitor._in_flight -= 1
                monitor._requests.add(seconds)
                if self._queued_s is not None:
                    monitor._queued.add(self._queued_s)
            if monitor._metrics is not None:
                monitor._metrics.request_s.observe(seconds)
        except Exception as fault:
            monitor._fault(fault)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)


class _NoRequest:
    """A request of a monitor that is off."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


_NO_REQUEST = _NoRequest()


@dataclass(frozen=True)
class Counts:
    """Totals since a monitor began, and what is now."""

    queued_s: float
    errors: int
    faults: int
    sampled: int
    layers: dict[str, float]
    in_flight: int
    memory_bytes: float


class _SizeCounts:
    """The calls of one size class."""

    __slots__ = ("latency", "shapes")

    def __init__(self) -> None:
        self.latency = Histogram()
        self.shapes: dict[tuple[int, ...], int] = {}

    def add(self, shape: tuple[int, ...], seconds: float) -> None:
        self.latency.add(seconds)
        if shape not in self.shapes and len(self.shapes) >= MOST_SHAPES:
            shape = ()
        self.shapes[shape] = self.shapes.get(shape, 0) + 1

    def frozen(self, size: int) -> SizeBin:
        shapes = tuple(ShapeCount(shape, calls) for shape, calls in self.shapes.items())
        return SizeBin(size, self.latency.frozen(), shapes)


class Monitor:
    """Measures a model while it serves: latency by input size, sampled layer times, changes.

    `model` is one of TinyTorch or PyTorch, or any object with a `forward`, which is replaced on
    the instance until :meth:`close`; without a model only requests are seen. One in `1 / sample`
    calls, drawn at random, has its layers timed. `snapshot` is a file that is written every few
    seconds; `{pid}` in its name stands for the process, where there are several workers. A monitor
    that starts again reads its reference from there. `on_change` is called with each change, in the
    monitor's own thread. Nothing that fails in here reaches a request: it is counted in `faults`.

    >>> from tinytorch.models.zoo import load_zoo
    >>> workload = load_zoo("mlp")
    >>> with Monitor(workload.model, sample=1.0) as monitor:
    ...     for _ in range(5):
    ...         with monitor.request():
    ...             _ = workload.run()
    >>> seen = monitor.snapshot()
    >>> seen.requests.n, seen.latency.n, seen.sampled
    (5, 5, 5)
    """

    def __init__(
        self,
        model: Any = None,
        *,
        sample: float = 0.01,
        name: str = "",
        enabled: bool = True,
        snapshot: str | os.PathLike[str] | None = None,
        snapshot_every_s: float = 10.0,
        learning_minutes: int = 60,
        on_change: Callable[[Change], None] | None = None,
    ) -> None:
        check_number("sample", sample, least=0, most=1)
        check_number("snapshot_every_s", snapshot_every_s, above=0)
        check_number("learning_minutes", learning_minutes, least=1)
        self.name = name or type(model).__name__
        self.is_on = enabled
        self._model = model
        self._sample = float(sample)
        self._path = None if snapshot is None else os.fspath(snapshot)
        self._snapshot_every_s = snapshot_every_s
        self._learning_minutes = learning_minutes
        self._on_change = on_change
        self._framework = self._device = "none"
        self._is_timed_by_host = True
        self._layers: LayerClock | None = None
        self._replaced = Replaced()
        self._metrics: Metrics | None = None
        self._make_metrics: Callable[[], Metrics] | None = None
        self._seconds: Callable[[Any, Any], float] = lambda begin, end: float(end - begin)
        if enabled and model is not None:
            self._watch(model)
        self._begin_counting()
        if enabled:
            if model is not None:
                self._replaced.install()
            _monitors.add(self)

    def _watch(self, model: Any) -> None:
        from tinytorch.models.adapter import adapter_for

        adapter = adapter_for(model)
        name = check_watchable(model, adapter.methods)
        self._framework, self._device = adapter.name, adapter.device(model, ())
        self._is_timed_by_host = self._device == "cpu"
        self._layers = LayerClock(adapter, model)
        if not self._is_timed_by_host:
            from tinytorch.monitoring.events_torch import event_seconds, stamp_on

            self._layers.stamp, self._seconds = stamp_on(self._device), event_seconds
        method = getattr(model, name)
        self._replaced.add(model, name, Watched(model, name, method, self._call))

    def _begin_counting(self) -> None:
        self._lock = threading.Lock()
        self._beside = threading.RLock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._started = time.time()
        self._in_flight = self._most_in_flight = self._computing = 0
        self._errors = self._faults = 0
        self._last_fault = ""
        self._requests, self._queued = Histogram(), Histogram()
        self._sizes: dict[int, _SizeCounts] = {}
        self._samples: deque[Sample] = deque(maxlen=MOST_WAITING)
        self._random = random.Random(os.urandom(8))
        self._until = self._gap()
        self._probe = Probe()
        self._paths = list(self._layers.kinds) if self._layers else []
        self._layer_s = np.zeros(len(self._paths))
        self._layer_calls = np.zeros(len(self._paths), np.int64)
        self._sampled, self._sampled_s = 0, 0.0
        self._detector = ChangeDetector(self._paths, self._learning_minutes)
        self._before: dict[int, Distribution] = {}
        self._minutes: deque[MinuteSummary] = deque(maxlen=REMEMBERED_MINUTES)
        self._memory = self._most_memory = 0.0
        self._begin_minute(self._started)
        self._next_snapshot = self._started + self._snapshot_every_s
        if self.is_on:
            self._resume()

    def _begin_minute(self, now: float) -> None:
        self._minute_ends = now + MINUTE_S
        self._minute_rows: list[tuple[float, ...]] = []

    def _resume(self) -> None:
        """Take the reference of the process before, if it watched the same layers."""
        try:
            path = self._snapshot_path()
            if path is None or not path.exists():
                return
            before = read_snapshot(str(path))
            reference = before.reference
            if reference is not None and before.name == self.name:
                kinds = {each.path: each.kind for each in before.layers}
                if self._layers is not None and kinds == self._layers.kinds:
                    self._detector = ChangeDetector(self._paths, self._learning_minutes, reference)
        except Exception as error:
            self._fault(error)

    # ------------------------------------------------------------ in the path of requests

    def request(self, *, queued_s: float = 0.0) -> Request | _NoRequest:
        """Measure a block as one request; `queued_s` is what it waited before it came here."""
        return Request(self, queued_s) if self.is_on else _NO_REQUEST

    # Between two calls of a model the processor's caches are full of its weights, and each line
    # takes several times as long as in a loop of its own: so there are few, and few functions.

    def _call(
        self, method: Callable[..., Any], inputs: tuple[Any, ...], settings: dict[str, Any]
    ) -> Any:
        """Call the model, and see what it takes."""
        computing, mark = 1, None
        try:
            with self._lock:
                self._computing = computing = self._computing + 1
                self._until = until = self._until - 1
                if until <= 0:
                    self._until = self._gap()
            request = _current.get()
            if request is not None and request._queued_s is None:
                request._queued_s = perf_counter() - request._begun  # until now it has waited
            if self._thread is None:
                self._start_thread()
            if until <= 0 and self._layers is not None and self._layers.begin():
                mark = self._layers.stamp()
        except Exception as error:
            self._give_up(error)
        begun = perf_counter()
        try:
            output = method(*inputs, **settings)
        except BaseException:
            self._call_raised(mark)
            raise
        seconds = perf_counter() - begun
        shape: tuple[int, ...] = ()
        size = 0
        try:
            if mark is not None and self._layers is not None:
                ended = self._layers.stamp()
                stamps = self._layers.end()
            shape = shape_of(inputs, settings)
            size = size_class(shape) if shape else 0
        except Exception as error:
            mark = None
            self._give_up(error)
        try:
            with self._lock:
                self._computing -= 1
                if self._is_timed_by_host:
                    counts = self._sizes.get(size)
                    if counts is None:
                        counts = self._sizes[size] = _SizeCounts()
                    counts.add(shape, seconds)
            if self._metrics is not None and self._is_timed_by_host:
                self._metrics.observe_call(size, seconds)
            if mark is not None:
                probes = self._probe()
                self._samples.append(
                    Sample(size, shape, computing, probes, mark, ended, stamps, self._seconds)
                )
        except Exception as error:
            self._give_up(error)
        return output

    def _call_raised(self, mark: Any) -> None:
        """Count a call that raised; `mark` is the begin of a sampled one."""
        try:
            with self._lock:
                self._computing -= 1
                self._errors += 1
            if mark is not None and self._layers is not None:
                self._layers.end()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Count what failed in here, and watch no layer any longer if it was this thread's."""
        self._fault(error)
        if self._layers is not None:
            self._layers.abandon()

    def _gap(self) -> int:
        """Draw after how many calls the next one is sampled, so that each is as likely."""
        if self._sample <= 0:
            return 1 << 62
        if self._sample >= 1:
            return 1
        return 1 + int(log(1 - self._random.random()) / log(1 - self._sample))

    def _fault(self, error: BaseException) -> None:
        self._faults += 1
        self._last_fault = first_line(error)[:200]

    # ------------------------------------------------------------ beside the requests

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped.is_set():
                return
            self._thread = threading.Thread(
                target=self._run, name="tinytorch-monitor", args=(self._stopped,), daemon=True
            )
        try:
            self._thread.start()
        except RuntimeError as error:  # The interpreter is ending, or no thread can be had.
            self._fault(error)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(TICK_S):
            self.tick()

    def tick(self, now: float | None = None) -> None:
        """Read the samples, close the minute, write the snapshot, as far as these are due.

        The monitor's thread calls it every second; a service does not need to.
        """
        now = time.time() if now is None else now
        steps = (self._read_samples, self._close_minute, self._export, self._write_when_due)
        with self._beside:
            for step in steps:
                try:
                    step(now)
                except Exception as error:
                    self._fault(error)

    def _read_samples(self, now: float) -> None:
        places = {path: at for at, path in enumerate(self._paths)}
        for _ in range(len(self._samples)):
            sample = self._samples.popleft()
            if not sample.is_done:
                self._samples.appendleft(sample)
                return
            total, own = sample.own_times()
            row = np.zeros(len(self._paths))
            for path, seconds in own.items():
                if path in places:
                    row[places[path]] = seconds
                    self._layer_calls[places[path]] += 1
            self._sampled += 1
            self._sampled_s += total
            self._layer_s += row
            if not self._is_timed_by_host:
                with self._lock:
                    counts = self._sizes.setdefault(sample.size, _SizeCounts())
                    counts.add(sample.shape, total)
            if len(self._minute_rows) < MOST_OF_A_MINUTE:
                head = (sample.size, sample.in_flight, *sample.probes, total)
                self._minute_rows.append((*head, *row))

    def _close_minute(self, now: float) -> None:
        if now < self._minute_ends:
            return
        self._measure_memory()
        rows = self._minute_rows
        self._begin_minute(now)
        with self._lock:
            bins = {size: each.frozen(size) for size, each in self._sizes.items()}
        before, self._before = self._before, {at: each.latency for at, each in bins.items()}
        latest = {at: each.since(before.get(at, NOTHING)) for at, each in self._before.items()}
        seen = Distribution.joined(latest.values())
        calls = _as_calls(rows, now, len(self._paths))
        probe = float(np.median(calls.probes.sum(1))) if len(calls) else None
        quantiles = seen.quantile(0.5), seen.quantile(0.99)
        self._minutes.append(MinuteSummary(now, seen.n, *quantiles, self._memory, probe))
        if not seen.n:
            return  # A minute without calls says nothing of the model.
        sizes = {size: each.n for size, each in latest.items()}
        self._detector.size_names = {size: each.name for size, each in bins.items()}
        for change in self._detector.add(Minute(now, sizes, self._memory, calls)):
            logger.warning("%s: %s", self.name, change.words)
            if self._on_change is not None:
                self._on_change(change)

    def _measure_memory(self) -> None:
        from tinytorch.measure.memory import process_memory

        found = process_memory()
        self._memory = float(found.rss_bytes)
        self._most_memory = max(self._most_memory, self._memory)

    def _export(self, now: float) -> None:
        if self._metrics is not None:
            self._measure_memory()
            self._metrics.export(self)

    def _write_when_due(self, now: float) -> None:
        if self._path is not None and now >= self._next_snapshot:
            self._next_snapshot = now + self._snapshot_every_s
            self.write()

    def _snapshot_path(self) -> Path | None:
        return None if self._path is None else Path(self._path.replace("{pid}", str(os.getpid())))

    def write(self) -> None:
        """Write the snapshot now; raise OSError where that fails, and keep the file before."""
        path = self._snapshot_path()
        if path is None:
            return
        text = dumps(self.snapshot().to_dict(), allow_nan=False)
        with write_atomically(path) as temporary:
            temporary.write_text(text, "utf-8")

    # ------------------------------------------------------------ what it has seen

    def add_metrics(self, make: Callable[[], Metrics]) -> None:
        """Export to these metrics from now on; a forked worker makes its own."""
        self._make_metrics = make
        self._metrics = make() if self.is_on else None

    def counts(self) -> Counts:
        """Return the totals that metrics export."""
        return Counts(
            queued_s=self._queued.sum_s,
            errors=self._errors,
            faults=self._faults,
            sampled=self._sampled,
            layers=dict(zip(self._paths, self._layer_s.tolist(), strict=True)),
            in_flight=self._in_flight,
            memory_bytes=self._memory,
        )

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return what changed, oldest first."""
        return tuple(self._detector.changes)

    @property
    def faults(self) -> int:
        """How often something failed in the monitor itself."""
        return self._faults

    def snapshot(self) -> Snapshot:
        """Return everything seen so far."""
        with self._beside:
            self._read_samples(time.time())
            self._measure_memory()
            return self._frozen()

    def _frozen(self) -> Snapshot:
        with self._lock:
            sizes = tuple(each.frozen(size) for size, each in sorted(self._sizes.items()))
            requests, queued = self._requests.frozen(), self._queued.frozen()
        kinds = self._layers.kinds if self._layers else {}
        sums = zip(self._paths, self._layer_s.tolist(), self._layer_calls.tolist(), strict=True)
        return Snapshot(
            name=self.name,
            framework=self._framework,
            device=self._device,
            process=self._process,
            started=self._started,
            taken=time.time(),
            sample=self._sample,
            requests=requests,
            queued=queued,
            in_flight=self._in_flight,
            most_in_flight=self._most_in_flight,
            errors=self._errors,
            faults=self._faults,
            last_fault=self._last_fault,
            sizes=sizes,
            sampled=self._sampled,
            sampled_s=self._sampled_s,
            layers=tuple(SampledLayer(path, kinds[path], s, n) for path, s, n in sums),
            memory_bytes=self._memory,
            most_memory_bytes=self._most_memory,
            minutes=tuple(self._minutes),
            changes=self.changes,
            learned_minutes=self._detector.learned_minutes,
            learning_minutes=self._learning_minutes,
            reference=self._detector.reference,
        )

    def relearn(self) -> None:
        """Forget the reference and learn a new one, as after a change that is meant."""
        self._detector = ChangeDetector(self._paths, self._learning_minutes)

    def close(self) -> None:
        """Leave the model as it was, write the last snapshot, and end the thread."""
        if not self.is_on:
            return
        self.is_on = False
        self._replaced.remove()
        _monitors.discard(self)
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5 * TICK_S)
        self._next_snapshot = 0.0
        self.tick()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        """Begin anew in a forked worker: locks may be held by threads that it does not have."""
        if self._layers is not None:
            self._layers.restart()
        self._begin_counting()
        if self._make_metrics is not None:
            self._metrics = self._make_metrics()


def _as_calls(rows: list[tuple[float, ...]], now: float, layers: int) -> Calls:
    table = np.array(rows, np.float64).reshape(-1, 5 + layers)
    return Calls(
        minutes=np.full(len(table), now),
        sizes=table[:, 0],
        in_flight=table[:, 1],
        probes=table[:, 2:4],
        total=table[:, 4],
        layers=table[:, 5:],
    )


def _restart_all() -> None:
    for monitor in list(_monitors):
        monitor._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
