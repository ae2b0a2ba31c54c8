"""What a monitor costs: per call, on a model of 1 ms by our own comparer, and in memory.

python benchmarks/monitor_overhead.py              # --calls 10000000 for the memory
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import copy
import json
import statistics
import time

import numpy as np
import psutil
from prometheus_client import CollectorRegistry

from tinytorch import Tensor, compare, no_grad
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.monitoring.monitor import Monitor
from tinytorch.monitoring.prometheus import export_metrics

TURNS, CALLS = 40, 5000


class Empty:
    def forward(self, x):
        return x

    def __call__(self, x):
        return self.forward(x)


def plain(model, x, calls):
    for _ in range(calls):
        model(x)


def served(monitor):
    def run(model, x, calls):
        for _ in range(calls):
            with monitor.request():
                model(x)

    return run


def per_call(run, model, x, calls=CALLS):
    begun = time.perf_counter()
    run(model, x, calls)
    return (time.perf_counter() - begun) / calls * 1e6


def empty_calls():
    """Yield what a request around an empty call adds to it, in us: medians and means of turns."""
    x = np.zeros((1, 4), np.float32)
    for name, settings, is_exported in (
        ("off", {"enabled": False}, False),
        ("on, 1% sampled", {"sample": 0.01}, False),
        ("on, 1% sampled, Prometheus", {"sample": 0.01}, True),
    ):
        watched, bare = Empty(), Empty()
        monitor = Monitor(watched, **settings)
        if is_exported:
            export_metrics(monitor, CollectorRegistry())
        added = []
        for _ in range(TURNS):
            before = per_call(plain, bare, x)
            added.append(per_call(served(monitor), watched, x) - before)
        monitor.close()
        median, mean = statistics.median(added), statistics.mean(added)
        yield {"monitor": name, "added_us_median": median, "added_us_mean": mean, "turns": TURNS}


def a_millisecond():
    """Compare a model of about 1 ms with and without a monitor, by the comparer.

    Both sides have the same layers: where weights lie in memory moves times by more than a monitor.
    """
    layers = [Linear(512, 512, rng=at) for at in range(6)]
    watched = Sequential(*(part for layer in layers for part in (layer, ReLU())))
    bare = copy.copy(watched)
    x = Tensor(np.random.default_rng(0).normal(size=(72, 512)).astype(np.float32))
    with Monitor(watched, sample=0.01) as monitor, no_grad():
        export_metrics(monitor, CollectorRegistry())

        def baseline():
            return bare(x)

        def candidate():
            with monitor.request():
                return watched(x)

        found = compare(baseline, candidate, budget_s=20.0)
        took = monitor.snapshot().latency.quantile(0.5)
    return {
        "call_ms": took * 1e3,
        "time_ratio": found.time_ratio,
        "low": found.time_ratio_low,
        "high": found.time_ratio_high,
        "n": found.n,
        "verdict": found.verdict,
        "notes": [str(note) for note in found.notes],
    }


def memory(calls):
    """Return by how much the process grew over many calls of many sizes, in MB."""
    model, me = Empty(), psutil.Process()
    inputs = [np.empty((rows, 8), np.float32) for rows in range(1, 300)]
    with Monitor(model, sample=0.01) as monitor:

        def serve(count):
            for at in range(count):
                with monitor.request():
                    model(inputs[at % 299])

        serve(50_000)
        monitor.tick()
        before = me.memory_info().rss
        begun = time.perf_counter()
        serve(calls)
        seconds = time.perf_counter() - begun
        grown = me.memory_info().rss - before
        seen = monitor.snapshot()
    return {
        "calls": calls,
        "counted": seen.latency.n,
        "seconds": seconds,
        "grown_mb": grown / 2**20,
        "snapshot_kb": len(json.dumps(seen.to_dict())) / 1024,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--only", choices=["empty", "model", "memory"])
    options = parser.parse_args()
    if options.only in (None, "empty"):
        for row in empty_calls():
            print(json.dumps(row), flush=True)
    if options.only in (None, "model"):
        print(json.dumps(a_millisecond()), flush=True)
    if options.only in (None, "memory"):
        print(json.dumps(memory(options.calls)), flush=True)


if __name__ == "__main__":
    main()
