"""A monitor's metrics for Prometheus, also of several worker processes that come and go.

Where `PROMETHEUS_MULTIPROC_DIR` names a folder, each worker writes its metrics there, and any of
them answers a scrape for all, those that have ended included.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tinytorch.errors import MissingPartError

if TYPE_CHECKING:
    from tinytorch.monitoring.monitor import Monitor

try:
    import prometheus_client as prometheus
    from prometheus_client import multiprocess as workers
except ImportError as error:
    raise MissingPartError(
        "metrics for Prometheus need prometheus-client: pip install 'tinytorch-perf[monitor]'"
    ) from error

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS = tuple(1e-4 * 2**power for power in range(18))
"""From 0.1 ms to 13 s, each twice the one before."""
_families: WeakKeyDictionary[Any, Families] = WeakKeyDictionary()


class Families:
    """Every metric that there is, once per registry; all have the label `model`."""

    def __init__(self, registry: Any) -> None:
        on, model = {"registry": registry}, ["model"]
        histogram, counter, gauge = prometheus.Histogram, prometheus.Counter, prometheus.Gauge
        self.requests = histogram(
            "tinytorch_request_seconds", "Whole requests", model, buckets=BUCKETS, **on
        )
        self.calls = histogram(
            "tinytorch_call_seconds",
            "Calls of the model, by the class of the input's size (powers of two of elements)",
            ["model", "size"],
            buckets=BUCKETS,
            **on,
        )
        self.queued = counter(
            "tinytorch_queued_seconds", "Time of requests before the model", model, **on
        )
        self.errors = counter("tinytorch_model_errors", "Exceptions of the model", model, **on)
        self.faults = counter(
            "tinytorch_monitor_faults", "Failures of the monitor itself", model, **on
        )
        self.sampled = counter(
            "tinytorch_sampled_calls", "Calls with their layers timed", model, **on
        )
        self.layers = counter(
            "tinytorch_layer_seconds",
            "Own time of layers in sampled calls",
            ["model", "layer"],
            **on,
        )
        self.in_flight = gauge(
            "tinytorch_requests_in_flight", "Requests now", model, multiprocess_mode="livesum", **on
        )
        self.memory = gauge(
            "tinytorch_resident_bytes",
            "Memory of a process",
            model,
            multiprocess_mode="liveall",
            **on,
        )
        self.change = gauge(
            "tinytorch_change",
            "1 while something is not as in the reference",
            ["model", "kind", "subject"],
            multiprocess_mode="livemax",
            **on,
        )


class Metrics:
    """The metrics of one monitor: latency at once, everything else once a second."""

    def __init__(self, name: str, registry: Any = None) -> None:
        registry = prometheus.REGISTRY if registry is None else registry
        if registry not in _families:
            _families[registry] = Families(registry)
        self._families = _families[registry]
        self._name = name
        self.request_s = self._families.requests.labels(name)
        self._calls: dict[int, Any] = {}
        self._written: dict[Any, float] = {}
        self._changes: set[tuple[str, str]] = set()

    def observe_call(self, size: int, seconds: float) -> None:
        """Count a call of the model."""
        found = self._calls.get(size)
        if found is None:
            found = self._calls[size] = self._families.calls.labels(self._name, str(size))
        found.observe(seconds)

    def export(self, monitor: Monitor) -> None:
        """Bring everything that is not counted at once up to date."""
        families, name = self._families, self._name
        counts = monitor.counts()
        self._count(families.queued.labels(name), counts.queued_s)
        self._count(families.errors.labels(name), counts.errors)
        self._count(families.faults.labels(name), counts.faults)
        self._count(families.sampled.labels(name), counts.sampled)
        for path, seconds in counts.layers.items():
            self._count(families.layers.labels(name, path), seconds)
        families.in_flight.labels(name).set(counts.in_flight)
        families.memory.labels(name).set(counts.memory_bytes)
        active = {(each.kind, each.subject) for each in monitor.changes if each.ended is None}
        self._changes |= active
        for each in self._changes:
            families.change.labels(name, *each).set(float(each in active))

    def _count(self, counter: Any, total: float) -> None:
        counter.inc(max(0.0, total - self._written.get(counter, 0.0)))
        self._written[counter] = total


def export_metrics(monitor: Monitor, registry: Any = None) -> None:
    """Export what a monitor sees to a registry of `prometheus_client`, its default one if None."""
    monitor.add_metrics(lambda: Metrics(monitor.name, registry))


def metrics_text(registry: Any = None) -> tuple[bytes, str]:
    """Return the answer to a scrape and its content type, for all workers if there are several."""
    folder = os.environ.get(FOLDER)
    if folder:
        _bury(Path(folder))
        registry = prometheus.CollectorRegistry()
        collector: Any = workers.MultiProcessCollector
        collector(registry)
    text = prometheus.generate_latest(prometheus.REGISTRY if registry is None else registry)
    return text, prometheus.CONTENT_TYPE_LATEST


def _bury(folder: Path) -> None:
    """Remove the live gauges of processes that are gone; their counters stay."""
    for path in folder.glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdecimal() and not _is_alive(int(pid)):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
