"""Profiles made by hand from a list of operations, each in a layer of its own, for advice."""

import math
from dataclasses import dataclass

from example_profiles import ENVIRONMENT, MS, layer_calls

from tinytorch.measure.ceilings import Bandwidth, Ceilings, Rate
from tinytorch.measure.samples import Samples
from tinytorch.models.adapter import ParameterSpec
from tinytorch.models.records import Allocation, Cost, OpRecord, Recording, TensorSpec
from tinytorch.profiling.profile import Profile

FLOAT = 4
RATES = {"float32": 1e9, "bfloat16": 2e9, "int8": 4e9}


@dataclass(frozen=True)
class Part:
    """One operation of so many milliseconds; `weight` is the shape of the parameter it reads."""

    kind: str
    ms: float
    family: str | None = "elementwise"
    inputs: tuple[tuple[int, ...], ...] = ((1, 10),)
    output: tuple[int, ...] = (1, 10)
    weight: tuple[int, ...] | None = None
    macs: int = 0
    path: str = ""
    recorded_ms: float | None = None


def linear(ms, *, rows=1, inside=1000, outside=1000, kind="aten.linear", **changes) -> Part:
    """Give a product of a matrix of (rows, inside) with a weight, in so many milliseconds."""
    return Part(
        kind,
        ms,
        "contraction",
        ((rows, inside),),
        (rows, outside),
        weight=(outside, inside),
        macs=rows * inside * outside,
        **changes,
    )


def machine(rates=RATES, *, bandwidth=1e9, missing=None) -> Ceilings:
    """Give a machine of 1 GB/s that multiplies 1, 2 and 4 G floats, bfloat16 and int8 a second."""
    return Ceilings(
        device="cpu",
        rates=tuple(Rate(k, "torch", Samples("rate", (v,), "FLOP/s")) for k, v in rates.items()),
        bandwidths=(Bandwidth("DRAM", 10_000, None, Samples("copy", (bandwidth,), "B/s"), 1),),
        cache_bytes={},
        fingerprint="example",
        measured_at="2026-01-01T00:00:00+00:00",
        not_measured=missing or {},
    )


def work_profile(*parts, outside_ms=0.0, **changes) -> Profile:
    """Give the profile of a call of these operations; the model itself takes `outside_ms`."""
    calls, records, parameters, kinds, now = [], [], [], {"": "Net"}, 0.0
    for number, part in enumerate(parts):
        path = part.path or f"layers.{number}"
        kinds[path] = "Linear" if part.weight else "Layer"
        calls.append((path, now, now + part.ms))
        now += part.ms
        records.append(record(part, path, number * MS))
        if part.weight:
            size = math.prod(part.weight)
            parameters.append(ParameterSpec(f"{path}.weight", path, size, FLOAT * size, True))
    total = now + outside_ms
    calls.append(("", 0.0, total))
    seconds = (total * MS,) * 4
    held = sum(each.nbytes for each in parameters)
    fields = {
        "name": "example",
        "framework": "pytorch",
        "device": "cpu",
        "mode": "inference",
        "latency": Samples("latency", seconds),
        "watched": Samples("watched", seconds),
        "turns": (2, 2),
        "runs": (layer_calls(calls),) * 4,
        "recording": Recording(tuple(records), (parameter_memory(held),), 2 * total * MS),
        "parameters": tuple(parameters),
        "kinds": kinds,
        "environment": ENVIRONMENT,
        "ceilings": machine(),
        "examples": 1,
    }
    return Profile(**(fields | changes))


def parameter_memory(nbytes) -> Allocation:
    return Allocation(max(1, nbytes), "parameters", "", "resident", 0.0, None)


def record(part, path, start) -> OpRecord:
    shapes = (*part.inputs, part.weight) if part.weight else part.inputs
    inputs = tuple(TensorSpec(shape, "float32", FLOAT * math.prod(shape)) for shape in shapes)
    output = TensorSpec(part.output, "float32", FLOAT * math.prod(part.output))
    cost = None
    if part.family is not None:
        read = sum(each.nbytes for each in inputs)
        other = 0 if part.macs else output.size
        moves = (0, 0) if part.family == "view" else (read, output.nbytes)
        cost = Cost(part.family, part.macs, part.macs, 0, other, *moves)
    recorded = part.ms if part.recorded_ms is None else part.recorded_ms
    return OpRecord(part.kind, path, "forward", inputs, (output,), cost, start, recorded * MS)


def written_out_attention(*, length=100, heads=2, width=10, ms=1.0, kind="aten.bmm", **changes):
    """Give a product, a scale, a softmax and a product, of `ms` each."""
    scores, tokens = (heads, length, length), (heads, length, width)
    macs = heads * length * length * width
    across = (heads, width, length)
    return [
        Part(kind, ms, "contraction", (tokens, across), scores, macs=macs, **changes),
        Part("aten.mul", ms, "elementwise", (scores,), scores, **changes),
        Part("aten._softmax", ms, "reduction", (scores,), scores, **changes),
        Part(kind, ms, "contraction", (scores, tokens), tokens, macs=macs, **changes),
    ]


def on_gpu(*parts, idle=0.5, **changes) -> Profile:
    """Give the same on a device that waits for the program in this part of a call."""
    busy_s = sum(part.ms for part in parts) * MS
    return work_profile(
        *parts,
        device="cuda:0",
        latency=Samples("latency", (busy_s / (1 - idle),) * 4),
        device_time=Samples("device time", (busy_s / (1 - idle),) * 4),
        busy=Samples("busy", (busy_s,) * 4),
        **changes,
    )
