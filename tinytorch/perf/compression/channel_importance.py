"""How much a channel matters: by its weights, or by what it brings on calibration data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.perf.compression.channel_graph import Family, Place
from tinytorch.workloads.observing import see_calibration, switch_to_eval
from tinytorch.workloads.workload import Workload

__all__ = ["IMPORTANCES", "input_energies", "unit_importance"]

IMPORTANCES = ("magnitude", "activation")

Energies = Mapping[str, npt.NDArray[np.float64]]
"""By the name of a weight: the sum of squares of each of its inputs on the calibration data."""

NO_DATA = (
    "importance='activation' needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; importance='magnitude' needs none"
)


def input_energies(workload: Workload) -> Energies:
    """Run the calibration data through a copy of a model and sum up the squares of inputs."""
    if not workload.calibration:
        raise SettingError(NO_DATA)
    adapter = adapter_for(workload.model, workload.arguments)
    twin = adapter.clone(workload.model)
    modules = adapter.modules(twin)
    switch_to_eval(modules)
    names = {id(tensor): name for name, tensor in named_tensors(twin).items()}
    layers = {path: layer for path, layer in modules.items() if isinstance(layer, (Linear, Conv2d))}
    energies: dict[str, npt.NDArray[np.float64]] = {}

    def see(path: str, x: Any) -> None:
        layer = layers[path]
        axis = -1 if isinstance(layer, Linear) else -3
        if isinstance(x, Tensor) and id(layer.weight) in names and x.data.size:
            rows = np.moveaxis(x.data, axis, -1).reshape(-1, x.shape[axis]).astype(np.float64)
            if not np.isfinite(rows).all():
                raise SettingError("it holds NaN or infinity")
            name = names[id(layer.weight)]
            energies[name] = energies.get(name, 0.0) + (rows**2).sum(axis=0)

    see_calibration(twin, layers, workload, see)
    return energies


def unit_importance(
    family: Family, tensors: Mapping[str, Tensor], energies: Energies | None = None
) -> npt.NDArray[np.float64]:
    """Give a number for each unit of a family: how much would be missing without it.

    By magnitude it is the norm of all weights that go with the unit. With energies, it is the norm
    of what the unit adds to the sums of those layers that take it in, on the calibration data; a
    layer whose inputs were not seen counts by its weights.
    """
    places = family.places
    if energies is not None:
        places = tuple(place for place in places if place in family.consumers)
    parts = {
        place: _squares(place, tensors[place.tensor].data)
        for place in places
        if tensors[place.tensor].ndim > 1
    }
    for place in parts:
        energy = None if energies is None else energies.get(place.tensor)
        if energy is not None and len(energy) == len(parts[place]):
            parts[place] = parts[place] * energy
    totals = [
        sum(parts[place][list(unit[place])].sum() for place in parts) for unit in family.units
    ]
    return np.sqrt(np.array(totals, np.float64))


def _squares(place: Place, weight: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Sum up the squares of a weight at each index of an axis."""
    others = tuple(axis for axis in range(weight.ndim) if axis != place.axis)
    total: npt.NDArray[np.float64] = (weight.astype(np.float64) ** 2).sum(axis=others)
    return total
