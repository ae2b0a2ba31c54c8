"""Snapshots of services, with what a real one has after hours."""

from tinytorch.monitoring.changes import Change
from tinytorch.monitoring.histogram import Histogram
from tinytorch.monitoring.reference import Reference
from tinytorch.monitoring.snapshot import (
    MinuteSummary,
    SampledLayer,
    ShapeCount,
    SizeBin,
    Snapshot,
)

BEGAN = 1_700_000_000.0


def spread(seconds, count):
    histogram = Histogram()
    for at in range(count):
        histogram.add(seconds * (1 + at / count))
    return histogram.frozen()


def snapshot(*, changes=(), is_learned=True, name="digits", layer="layers.0", faults=0):
    reference = Reference(
        (layer, "<model>", "<machine>"),
        (0.8,),
        (10,),
        [[0.0]],
        [0.0],
        [0.5],
        [0.5, 0.1],
        1e9,
        60,
        900,
    )
    return Snapshot(
        name=name,
        framework="core",
        device="cpu",
        process=1,
        started=BEGAN,
        taken=BEGAN + 7200,
        sample=0.01,
        requests=spread(0.004, 3000),
        queued=spread(0.002, 3000),
        in_flight=1,
        most_in_flight=7,
        errors=2,
        faults=faults,
        last_fault="OSError: full" if faults else "",
        sizes=(
            SizeBin(10, spread(0.001, 2000), (ShapeCount((1, 784), 2000),)),
            SizeBin(13, spread(0.004, 1000), (ShapeCount((8, 784), 990), ShapeCount((), 10))),
        ),
        sampled=30,
        sampled_s=0.06,
        layers=(
            SampledLayer(layer, "Linear", 0.045, 30),
            SampledLayer("layers.1", "ReLU", 0.005, 30),
        ),
        memory_bytes=2.0**28,
        most_memory_bytes=2.0**29,
        minutes=tuple(
            MinuteSummary(BEGAN + 60 * at, 25, 0.001, 0.002 + at / 1e5, 2.0**28)
            for at in range(120)
        ),
        changes=tuple(changes),
        learned_minutes=60 if is_learned else 12,
        learning_minutes=60,
        reference=reference if is_learned else None,
    )


def changed(kind, *, ended=None, subject="layers.0"):
    return Change(kind, subject, BEGAN + 3600, BEGAN + 3960, 1.2, ended)
