"""What to do about what a monitor has seen: advice, and a workload with the mix of its inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tinytorch.errors import SettingError
from tinytorch.measure.roofline import amdahl
from tinytorch.monitoring.snapshot import Snapshot
from tinytorch.tuning.advice import Advice

BUSY_WAITING, LONG_TAIL, LARGE_SHARE = 0.2, 5.0, 0.25
"""Waiting as a share of requests, p99 over p50, a layer's share: from here on worth a word."""
UNMEASURED = "not predicted from production; tinytorch optimize measures it on the workload file"


def advise_service(snapshot: Snapshot) -> tuple[Advice, ...]:
    """Return what a snapshot suggests, with the evidence; the part of the time it is about decides
    the order."""
    rules = (_slow_layer, _waiting, _one_by_one, _tail, _typical_size)
    found = [each for rule in rules for each in rule(snapshot)]
    return tuple(sorted(found, key=lambda each: -(each.share or 0.0)))


def _slow_layer(snapshot: Snapshot) -> Iterator[Advice]:
    if not snapshot.sampled_s:
        return
    for layer in sorted(snapshot.layers, key=lambda each: -each.self_s)[:2]:
        share = min(1.0, layer.self_s / snapshot.sampled_s)
        if share < LARGE_SHARE:
            return
        evidence = (
            f"{layer.path} ({layer.kind}) takes {share:.0%} of the time of a call, "
            f"n={snapshot.sampled} sampled calls",
            f"2x faster there gives {amdahl(share, 2.0):.2f}x overall, at most "
            f"{amdahl(share):.2f}x",
        )
        yield Advice(
            "production layer",
            f"Make {layer.path} faster",
            evidence,
            not_predicted=UNMEASURED,
            share=share,
        )


def _waiting(snapshot: Snapshot) -> Iterator[Advice]:
    if not snapshot.requests.sum_s:
        return
    share = snapshot.queued.sum_s / snapshot.requests.sum_s
    if share >= BUSY_WAITING:
        evidence = (
            f"requests spend {share:.0%} of their time before the model is called",
            f"up to {snapshot.most_in_flight} requests were there at once",
        )
        title = "Let requests wait less: more workers, or several requests in one batch"
        yield Advice("production waiting", title, evidence, share=min(1.0, share))


def _one_by_one(snapshot: Snapshot) -> Iterator[Advice]:
    shapes = [each for found in snapshot.sizes for each in found.shapes]
    calls = sum(each.calls for each in shapes)
    single = sum(each.calls for each in shapes if each.shape[:1] == (1,))
    if calls and single > calls / 2 and snapshot.most_in_flight > 1:
        evidence = (
            f"{single / calls:.0%} of the calls have a batch of 1",
            f"up to {snapshot.most_in_flight} requests were there at once, so batches could form",
        )
        title = "Collect requests into batches; tinytorch advise finds the batch size"
        yield Advice("production batch", title, evidence, share=single / calls)


def _tail(snapshot: Snapshot) -> Iterator[Advice]:
    for found in snapshot.sizes:
        middle, tail = found.latency.quantile(0.5), found.latency.quantile(0.99)
        if middle and tail and found.latency.n >= 1000 and tail > LONG_TAIL * middle:
            evidence = (
                f"calls of {found.name}: p99 is {tail / middle:.1f}x the median, "
                f"n={found.latency.n}",
            )
            title = "Look at what else runs when a call is slow: inputs of one size differ so much"
            yield Advice("production tail", title, evidence, share=0.01)


def _typical_size(snapshot: Snapshot) -> Iterator[Advice]:
    total = snapshot.latency.sum_s
    if len(snapshot.sizes) < 2 or not total:
        return
    largest = max(snapshot.sizes, key=lambda each: each.latency.sum_s)
    share = largest.latency.sum_s / total
    evidence = (
        f"inputs of {largest.name} are {largest.latency.n / snapshot.latency.n:.0%} of the calls "
        f"and {share:.0%} of their time",
    )
    title = f"Optimize for inputs of {largest.name}: --workload FILE writes that workload"
    yield Advice("production size", title, evidence, not_predicted=UNMEASURED, share=share)


# ---------------------------------------------------------------- the workload that production is

WORKLOAD = '''\
"""What {name} is called with in production: {calls:,} calls in {hours:.1f} hours.

    tinytorch optimize {file}:make{sizes}

The example has the shape on which most time is spent. The values are those of the target's own
examples, repeated and cut: a monitor keeps sizes, never what production is called with.
"""

from dataclasses import replace

from tinytorch import load_workload
from tinytorch.models.workload import resize_workload

TARGET = {target}
SHAPES = {{  # shape of the first input -> calls, most time first
{shapes}
}}
CALIBRATION_BATCHES = 8


def at_shape(shape):
    """Return the target's workload with a first input of this shape."""
    workload = load_workload(TARGET)
    for axis, size in enumerate(shape):
        if workload.arguments[0].shape[axis] != size:
            workload = resize_workload(workload, axis, size)
    return workload


def make():
    """Return the workload of production."""
    example = at_shape(next(iter(SHAPES)))
    name = f"{{example.name}} as in production"
    if example.calibration:
        return replace(example, name=name)
    mix, total = [], sum(SHAPES.values())
    for shape, calls in SHAPES.items():
        inputs = at_shape(shape)
        mix += [inputs.inputs or inputs.keywords] * round(CALIBRATION_BATCHES * calls / total)
    return replace(example, name=name, calibration=mix)
'''


def workload_text(snapshot: Snapshot, target: str, file: Path) -> str:
    """Return a Python file whose `make` gives the target with the sizes that were seen."""
    shapes = _shapes_by_time(snapshot)
    if not shapes:
        raise SettingError("the snapshot has no shape of an input, so there is no mix to write")
    batches = sorted({shape[0] for shape in shapes})
    is_batch = len(batches) > 1 and len({shape[1:] for shape in shapes}) == 1
    lines = [f"    {shape!r}: {calls}," for shape, calls in shapes.items()]
    return WORKLOAD.format(
        name=snapshot.name.replace("\\", "").replace('"', ""),
        calls=snapshot.latency.n,
        hours=snapshot.seconds / 3600,
        file=file.name,
        target=json.dumps(target),
        sizes=f" --batch {','.join(map(str, batches))}" if is_batch else "",
        shapes="\n".join(lines),
    )


def _shapes_by_time(snapshot: Snapshot) -> dict[tuple[int, ...], int]:
    """Return the shapes with how often they were seen, those with most time first."""
    spent: dict[tuple[int, ...], float] = {}
    calls: dict[tuple[int, ...], int] = {}
    for found in snapshot.sizes:
        mean = found.latency.mean_s or 0.0
        for each in found.shapes:
            if each.shape:
                calls[each.shape] = each.calls
                spent[each.shape] = each.calls * mean
    return {shape: calls[shape] for shape in sorted(spent, key=lambda each: -spent[each])}
