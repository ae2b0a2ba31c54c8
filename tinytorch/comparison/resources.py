"""What a model needs beside time: memory, and room on a disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tinytorch.codec import Coded
from tinytorch.errors import ModelError, short_text
from tinytorch.measure.memory import peak_during
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.workload import (
    Preparation,
    Workload,
    batch_size,
    is_compiled,
    preparations_of,
)
from tinytorch.profiling.profile import MemoryTimeline

AS_WRITTEN = "counted for the uncompiled model; compiled code may need less"
INSIDE_OF_GRAPHS = "compiled code and captured graphs cannot be inspected; see the device peak"
LONG_CALL_S = 0.2
"""Of longer calls, operations are not recorded one by one: that may take twenty times as long."""
TAKES_LONG = (
    "skipped: counting live buffers takes several times as long as a call; see the device peak"
)
NOTHING_RAN = "no operation of this model ran in TinyTorch or PyTorch in this thread"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Resources(Coded):
    """Bytes that a model holds and needs. What is None has its reason in `not_measured`.

    `parameter_bytes` are those of parameters and buffers, each counted once. `peak_bytes` is the
    most that was alive at once during a call: live buffers with parameters and inputs, without the
    scratch memory inside of operators. `device_peak_bytes` is what a GPU's allocator gave out at
    most on top of what was there before the call, scratch memory included, and with it what stays
    taken for what was done once, such as the memory of a captured graph. `file_bytes` is the size
    of a file that was really written. `examples` is how many the call works on.
    """

    parameter_bytes: int | None = None
    peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    file_bytes: int | None = None
    examples: int | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> int | None:
        """The most that a model and a call of it need: on a GPU, parameters and the peak."""
        if self.device_peak_bytes is None:
            return self.peak_bytes
        held = self.parameter_bytes
        return None if held is None else held + self.device_peak_bytes

    def with_file(self, nbytes: int) -> Resources:
        """Return these with a file of the model that has so many bytes, if it is the larger one.

        What is delivered may hold weights as they were before the last of several transforms.
        """
        reasons = {name: x for name, x in self.not_measured.items() if name != "file_bytes"}
        return replace(self, file_bytes=max(nbytes, self.file_bytes or 0), not_measured=reasons)


def measure_resources(
    workload: Workload,
    *,
    device: str | None = None,
    preparations: tuple[Preparation, ...] | None = None,
    was_called: bool = False,
    call_s: float = 0.0,
) -> Resources:
    """Measure what a workload needs, by calling its model twice and writing it to a file.

    One call is enough where the model `was_called` before. It is left unchanged, and the file is
    gone afterwards. Without `device` it is the one that the model is on; without `preparations`
    they are what the model says. `call_s` is how long a call is known to take: long ones are made
    no more often than they must be. What fails is None, with the reason.
    """
    reasons = _Reasons()
    adapter = adapter_for(workload.model, workload.arguments)
    parameters = reasons.attempt("parameter_bytes", lambda: _held_bytes(adapter, workload.model))
    file_bytes = reasons.attempt("file_bytes", lambda: _file_bytes(adapter, workload.model))
    seen = reasons.attempt(
        "peak_bytes",
        lambda: _watched_call(adapter, workload, device, was_called=was_called, call_s=call_s),
    )
    peak = on_device = examples = None
    if seen is None:
        called = reasons.found["peak_bytes"]
        reasons.found |= {"device_peak_bytes": called, "examples": called}
    else:
        done = preparations_of(workload.model) if preparations is None else preparations
        examples = seen.examples
        peak = _live_peak(workload.model, seen, done, reasons)
        on_device = _device_peak(adapter, workload, seen, done, reasons)
        if examples is None:
            reasons.found["examples"] = "inputs and output do not agree in the length of an axis 0"
    return Resources(parameters, peak, on_device, file_bytes, examples, reasons.found)


class _Reasons:
    """Why something was not measured, by its name."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def attempt(self, name: str, measure: Callable[[], Result]) -> Result | None:
        try:
            return measure()
        except Exception as error:  # whatever a model or a disk may raise is a reason
            self.found[name] = short_text(error)
            return None


def _held_bytes(adapter: Adapter, model: Any) -> int:
    _check_countable(adapter, model)
    return sum(each.nbytes for each in adapter.parameters(model))


def _check_countable(adapter: Adapter, model: Any) -> None:
    packed = adapter.packed_layers(model)
    if packed:
        raise ModelError(f"{packed[0]!r} holds packed parameters, whose bytes cannot be counted")


def _file_bytes(adapter: Adapter, model: Any) -> int:
    with tempfile.TemporaryDirectory(prefix="tinytorch-") as folder:
        path = Path(folder) / "model"
        adapter.save(model, path)
        return path.stat().st_size


@dataclass(frozen=True)
class _Seen:
    """What was seen of one call; `count_live_bytes` gives its peak, or raises why there is none.

    `device_peak_bytes` is None on a processor. `is_undisturbed` if nothing recorded the call.
    """

    count_live_bytes: Callable[[], int]
    device_peak_bytes: int | None
    examples: int | None
    is_undisturbed: bool = False


def _watched_call(
    adapter: Adapter, workload: Workload, device: str | None, *, was_called: bool, call_s: float
) -> _Seen:
    """Watch the second call, since a first one may allocate what stays; count its examples."""
    model, examples = workload.model, None

    def step() -> Any:
        nonlocal examples
        output = workload.run()
        examples = batch_size(workload.arguments, output)
        return output

    place = device or adapter.device(model, workload.arguments)
    with adapter.preserving(model), adapter.without_gradients():
        if not was_called:
            workload.run()
        if call_s > LONG_CALL_S and place.startswith("cuda"):
            on_device = peak_during(place, step)
            return _Seen(partial(_refuse, TAKES_LONG), on_device, examples, is_undisturbed=True)
        counter = adapter.live_bytes_counter(model, workload.arguments)
        if call_s > LONG_CALL_S and counter is not None:
            peak = counter(step)
            return _Seen(partial(_counted, adapter, model, peak), None, examples)
        found = adapter.record(model, step, device=place, inputs=workload.arguments)
    peak = MemoryTimeline(found.allocations).peak_bytes if found.operations else None
    return _Seen(partial(_counted, adapter, model, peak), found.device_peak_bytes, examples)


def _refuse(reason: str) -> int:
    raise ModelError(reason)


def _counted(adapter: Adapter, model: Any, peak: int | None) -> int:
    _check_countable(adapter, model)
    return _refuse(NOTHING_RAN) if peak is None else peak


def _live_peak(
    model: Any, seen: _Seen, done: tuple[Preparation, ...], reasons: _Reasons
) -> int | None:
    """Return the peak of live bytes, as far as operations were recorded."""
    is_declared = any(not each.is_estimate for each in done)
    if is_declared and seen.device_peak_bytes is not None:
        reasons.found["peak_bytes"] = INSIDE_OF_GRAPHS
        return None
    peak = reasons.attempt("peak_bytes", seen.count_live_bytes)
    if peak is not None and (is_declared or is_compiled(model)):
        reasons.found["peak_bytes"] = AS_WRITTEN
    return peak


def _device_peak(
    adapter: Adapter,
    workload: Workload,
    seen: _Seen,
    done: tuple[Preparation, ...],
    reasons: _Reasons,
) -> int | None:
    """Return what a call needs on its device when it is not recorded.

    The recorder runs compiled models as they were written, which may need more: after it, one more
    call is made.
    """
    peak = seen.device_peak_bytes
    if peak is None:
        reasons.found["device_peak_bytes"] = "the model runs on a processor"
        return None
    if not seen.is_undisturbed:
        place = workload.device
        with adapter.preserving(workload.model), adapter.without_gradients():
            alone = reasons.attempt("device_peak_bytes", lambda: peak_during(place, workload.run))
        if alone is None:
            return None if "device_peak_bytes" in reasons.found else peak
        peak = alone
    unknown = [each.what for each in done if each.nbytes is None and not each.is_estimate]
    if unknown:
        reasons.found["device_peak_bytes"] = (
            f"memory held because it was {' and '.join(unknown)} is not included"
        )
    return peak + sum(each.nbytes or 0 for each in done)
