"""Training under constraints: weights that stay zero, that lie on a grid, or anything alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.optimizers import Optimizer
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError, ShapeError

__all__ = ["ConstrainedOptimizer", "Project", "keeping_zeros"]

Project = Callable[[Array], Array]
"""Gives the values that a parameter holds, from a free copy of it that is not to be changed."""
Prepare = Callable[[int, Sequence[Array]], None]
PREFIX = "free."


def keeping_zeros(kept: Array) -> Project:
    """Give the projection that holds the weights outside of a mask at zero."""

    def project(free: Array) -> Array:
        # no product: a copy that nobody sees may have grown beyond all numbers
        return np.where(kept, free, free.dtype.type(0))

    return project


class ConstrainedOptimizer(Optimizer):
    """An optimizer whose parameters keep to constraints: at once, and after each step.

    It moves free copies; the model holds what a projection makes of them. The gradient is that at
    the projected values and goes straight through to the free ones. So a mask, a mask that changes
    and rounding are one concept.

    `constraints` are pairs of a parameter and its projection. `prepare(steps, free_copies)` is
    called before the parameters are projected, for projections that change in time or depend on
    several parameters. A parameter whose ``data`` is replaced from outside, as by
    ``load_state_dict``, starts anew from there.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        constraints: Iterable[tuple[Tensor, Project]],
        *,
        prepare: Prepare | None = None,
    ) -> None:
        pairs = list(constraints)
        own = {id(parameter) for parameter in optimizer.params}
        for number, (parameter, _) in enumerate(pairs):
            if id(parameter) not in own:
                raise SettingError(
                    f"constraint {number} is for a tensor that the optimizer does not move; give "
                    "it to the optimizer as well"
                )
        self._constrained = [parameter for parameter, _ in pairs]
        if len({id(parameter) for parameter in self._constrained}) < len(pairs):
            raise SettingError("a parameter has two constraints; make one projection of them")
        self.optimizer = optimizer
        self._projections = [project for _, project in pairs]
        self._prepare = prepare
        self._free = [parameter.data.copy() for parameter in self._constrained]
        self._held = [parameter.data for parameter in self._constrained]
        self._project()

    # ------------------------------------------------------------ as the optimizer inside

    @property
    def params(self) -> list[Tensor]:  # type: ignore[override]
        return self.optimizer.params

    @property
    def lr(self) -> float:
        return self.optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer.lr = value

    @property
    def weight_decay(self) -> float:  # type: ignore[override]
        return self.optimizer.weight_decay

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.optimizer.steps

    @property
    def slots(self) -> list[dict[str, Array]]:  # type: ignore[override]
        """The arrays of each parameter, the free copy among them."""
        free = {id(p): array for p, array in zip(self._constrained, self._free, strict=True)}
        return [
            slots | ({"free": free[id(parameter)]} if id(parameter) in free else {})
            for parameter, slots in zip(self.params, self.optimizer.slots, strict=True)
        ]

    # ------------------------------------------------------------ steps

    def step(self) -> None:
        """Move the free copies, and give the model what the projections make of them."""
        self._take_over()
        for parameter, free in zip(self._constrained, self._free, strict=True):
            parameter.data = free
        try:
            self.optimizer.step()
        finally:
            for parameter, held in zip(self._constrained, self._held, strict=True):
                parameter.data = held
        self._project()

    def _take_over(self) -> None:
        """Start anew from parameters that somebody else has set."""
        for index, parameter in enumerate(self._constrained):
            if parameter.data is not self._held[index]:
                self._free[index], self._held[index] = parameter.data.copy(), parameter.data

    def _project(self) -> None:
        if self._prepare is not None:
            self._prepare(self.steps, self._free)
        projected = []
        for parameter, free, project in zip(
            self._constrained, self._free, self._projections, strict=True
        ):
            values = project(free)
            if values.shape != parameter.shape:
                raise ShapeError(
                    f"a projection gave shape {values.shape} for a parameter {parameter.shape}"
                )
            is_same = values is free or np.shares_memory(values, free)
            projected.append(values.copy() if is_same else values.astype(free.dtype, copy=False))
        for parameter, values in zip(self._constrained, projected, strict=True):
            parameter.data = values
        self._held = projected

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Array]:
        """Give the state of the optimizer inside, and the free copies."""
        free = {f"{PREFIX}{index}": array for index, array in enumerate(self._free)}
        return self.optimizer.state_dict() | free

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take back what :meth:`state_dict` gave; nothing changes unless everything fits.

        The parameters are projected from the free copies.
        """
        free: list[Any] = []
        for index, parameter in enumerate(self._constrained):
            array = arrays.get(f"{PREFIX}{index}")
            if array is None:
                raise CheckpointError(
                    f"missing key {f'{PREFIX}{index}'!r}: the state is that of an optimizer "
                    "without these constraints"
                )
            if array.shape != parameter.shape:
                raise CheckpointError(
                    f"optimizer key {f'{PREFIX}{index}'!r} has shape {array.shape}, the parameter "
                    f"needs {parameter.shape}"
                )
            free.append(array.astype(parameter.dtype))
        known = {f"{PREFIX}{index}" for index in range(len(free))}
        self.optimizer.load_state_dict({k: v for k, v in arrays.items() if k not in known})
        self._free = free
        self._project()
