"""A profile made by hand, small enough to check every number of it in one's head."""

import dataclasses

from tinytorch.measure.ceilings import Bandwidth, Ceilings, Rate
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.models.adapter import ParameterSpec
from tinytorch.models.records import (
    Allocation,
    Cost,
    LayerCall,
    OpRecord,
    Recording,
    TensorSpec,
)
from tinytorch.profiling.layers import BACKWARD, UPDATE
from tinytorch.profiling.profile import Profile

MS = 1e-3
ENVIRONMENT = describe_environment()
KINDS = {
    "": "Net",
    "blocks.0": "Block",
    "blocks.0.fc": "Linear",
    "blocks.1": "Block",
    "blocks.1.fc": "Linear",
    "head": "Linear",
}

# In milliseconds: the model from 0.5 to 9.5, two blocks of 3 with a layer of 2 each, a head of 2.
CALLS = (
    ("blocks.0.fc", 1.5, 3.5),
    ("blocks.0", 1.0, 4.0),
    ("blocks.1.fc", 4.5, 6.5),
    ("blocks.1", 4.0, 7.0),
    ("head", 7.0, 9.0),
    ("", 0.5, 9.5),
)


def example_profile(**changes) -> Profile:
    """Give a profile of a call of 10 ms, of which the slowest part takes 4 (two layers of 2)."""
    fields = {
        "name": "example",
        "framework": "core",
        "device": "cpu",
        "mode": "inference",
        "latency": Samples("latency", (0.0098, 0.0100, 0.0100, 0.0102)),
        "watched": Samples("watched", (0.0100, 0.0100, 0.0100, 0.0100)),
        "turns": (2, 2),
        "runs": (layer_calls(CALLS),) * 4,
        "recording": Recording(operations(), allocations(), 0.020),
        "parameters": (
            ParameterSpec("blocks.0.fc.weight", "blocks.0.fc", 100, 400, True),
            ParameterSpec("blocks.1.fc.weight", "blocks.1.fc", 100, 400, True),
            ParameterSpec("head.weight", "head", 50, 200, True),
            ParameterSpec("running_mean", "", 10, 40, False, True),
        ),
        "kinds": KINDS,
        "environment": ENVIRONMENT,
        "ceilings": example_ceilings(),
        "examples": 4,
    }
    return Profile(**(fields | changes))


def training_profile() -> Profile:
    """Give the same with a backward pass of 6 ms and an update of 2 ms behind it."""
    calls = (*CALLS, (BACKWARD, 10.0, 16.0), (UPDATE, 16.0, 18.0))
    base = example_profile()
    backward = [
        dataclasses.replace(each, phase="backward", start=0.020 - each.start, duration=0.002)
        for each in base.operations
        if each.macs
    ]
    update = operation("adam_step", None, 0.030, 0.001, phase="update", macs=0, family="update")
    recording = dataclasses.replace(
        base.recording, operations=(*base.operations, *reversed(backward), update)
    )
    return example_profile(
        mode="training",
        latency=Samples("latency", (0.020,) * 4),
        watched=Samples("watched", (0.020,) * 4),
        runs=(layer_calls(calls),) * 4,
        recording=recording,
    )


def moving_profile() -> Profile:
    """Give a call of 10 ms in which a layer without FLOPs moves 400 bytes in 4 ms."""
    look_up = operation("embedding", "", 0.001, 0.002, macs=0, family="data movement")
    look_up = dataclasses.replace(look_up, cost=dataclasses.replace(look_up.cost, other_flops=0))
    return example_profile(
        kinds={"": "Embedding"},
        runs=(layer_calls([("", 1.0, 5.0)]),) * 4,
        recording=Recording((look_up,), allocations(), 0.020),
        parameters=(),
    )


def empty_profile() -> Profile:
    """Give a call of a function in which nothing could be watched or recorded."""
    return example_profile(
        kinds={"": "function"},
        runs=((),) * 4,
        recording=Recording((), (), 0.020),
        parameters=(),
        examples=None,
    )


def layer_calls(calls) -> tuple[LayerCall, ...]:
    return tuple(LayerCall(path, start * MS, end * MS) for path, start, end in calls)


def operation(
    kind, path, start, duration, *, macs=1000, family="contraction", phase="forward", moved=400
) -> OpRecord:
    spec = TensorSpec((4, 10), "float32", 160)
    cost = None
    if family is not None:
        other = 0 if macs else 40
        cost = Cost(family, macs, macs, 0, other, moved - 160, 160)
    return OpRecord(kind, path, phase, (spec, None), (spec,), cost, start, duration)


def operations() -> tuple[OpRecord, ...]:
    return (
        operation("linear", "blocks.0.fc", 0.001, 0.002),
        operation("relu", "blocks.0", 0.003, 0.001, macs=0, family="elementwise"),
        operation("linear", "blocks.1.fc", 0.005, 0.002),
        operation("relu", "blocks.1", 0.008, 0.001, macs=0, family="elementwise"),
        operation("linear", "head", 0.010, 0.002, macs=500),
        operation("odd", "head", 0.013, 0.001, family=None),
    )


def allocations() -> tuple[Allocation, ...]:
    return (
        Allocation(1040, "parameters", "blocks.0.fc", "resident", 0.0, None),
        Allocation(160, "inputs", None, "resident", 0.0, None),
        Allocation(160, "activations", "blocks.0.fc", "forward", 0.002, 0.006),
        Allocation(320, "activations", "blocks.1.fc", "forward", 0.005, 0.009),
        Allocation(160, "activations", "head", "forward", 0.010, None),
    )


def example_ceilings() -> Ceilings:
    """Give a machine of 1 MFLOP/s, with a cache of 1,500 bytes at 1 MB/s before the memory."""
    rate = Samples("rate", (1e6,), "FLOP/s")
    fast, slow = Samples("copy", (1e6,), "B/s"), Samples("copy", (1e5,), "B/s")
    return Ceilings(
        device="cpu",
        rates=(Rate("float32", "numpy", rate),),
        bandwidths=(
            Bandwidth("L1", 1000, None, fast, 1, 1500),
            Bandwidth("DRAM", 10_000, None, slow, 1),
        ),
        cache_bytes={"L1": 1500},
        fingerprint="example",
        measured_at="2026-01-01T00:00:00+00:00",
    )
