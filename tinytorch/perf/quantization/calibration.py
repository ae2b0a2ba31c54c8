"""Calibration: what the inputs of each layer look like on typical data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.formats.ranges import RangeObserver, RangeStatistics
from tinytorch.perf.quantization.layer_catalog import CATALOG
from tinytorch.workloads.observing import see_calibration, switch_to_eval
from tinytorch.workloads.samples import Batches
from tinytorch.workloads.workload import Workload

__all__ = ["observe_inputs", "observe_layers"]

NO_DATA = (
    "static quantization needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; mode='dynamic' needs none"
)


def observe_layers(model: Any, batches: Batches) -> dict[str, RangeStatistics]:
    """Give statistics of the inputs of all layers that can be quantized, on a copy of a model."""
    adapter = adapter_for(model)
    if adapter.name != "core":
        raise SettingError(
            f"statistics are kept for layers of tinytorch, {type(model).__name__} is of "
            f"{adapter.name}, whose quantizers calibrate themselves"
        )
    twin = adapter.clone(model)
    modules = adapter.modules(twin)
    switch_to_eval(modules)
    wanted = {
        path: layer
        for path, layer in modules.items()
        if type(layer) in CATALOG and CATALOG[type(layer)].multiplies
    }
    return observe_inputs(twin, wanted, Workload("model", twin, (), calibration=batches))


def observe_inputs(
    model: Any, layers: Mapping[str, Module], workload: Workload
) -> dict[str, RangeStatistics]:
    """Run the calibration data through a model and give statistics of the inputs of these layers.

    Those that were not called are missing. Of layers that look something up, and of those that got
    empty inputs only, nothing was seen: their count is 0.
    """
    if not workload.calibration:
        raise SettingError(NO_DATA)
    observers: dict[str, RangeObserver] = {}

    def see(path: str, x: Any) -> None:
        observer = observers.setdefault(path, RangeObserver())
        if isinstance(x, Tensor) and CATALOG[type(layers[path])].multiplies:
            observer.update(x.data)

    see_calibration(model, layers, workload, see)
    seen = {path: observer.statistics for path, observer in observers.items()}
    multiplied = [seen[path] for path in seen if CATALOG[type(layers[path])].multiplies]
    if multiplied and not any(each.count for each in multiplied):
        raise SettingError(f"the calibration data is empty: no layer got a number. {NO_DATA}")
    return seen
