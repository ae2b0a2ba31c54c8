"""Optimizers: they change parameters in place, by the gradients that `backward` left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tinytorch.core.dispatch import phase, run
from tinytorch.core.kernels import Array
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


class Optimizer:
    """Base class: holds the parameters and one set of arrays (`slots`) per parameter."""

    slot_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float) -> None:
        if isinstance(params, Tensor):
            raise SettingError("an optimizer takes a list of parameters, got one tensor: use [w]")
        self.params: list[Tensor] = list(params)
        if not self.params:
            raise SettingError("an optimizer needs at least one parameter, got none")
        for number, parameter in enumerate(self.params):
            if getattr(parameter, "creator", self) is not None:
                raise SettingError(
                    f"parameter {number} is a {type(parameter).__name__} that was computed, or no "
                    "tensor at all; pass model.parameters() or a list of leaves"
                )
        if len({id(parameter) for parameter in self.params}) < len(self.params):
            raise SettingError("a parameter is given twice; it would be changed twice per step")
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise SettingError(f"{name} must be at least 0, got {value}")
        self.lr = lr
        self.weight_decay = weight_decay
        self.steps = 0
        self.slots: list[dict[str, Array]] = [{} for _ in self.params]

    def zero_grad(self) -> None:
        for parameter in self.params:
            parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        self.steps += 1
        with phase("update"):
            for parameter, slots in zip(self.params, self.slots, strict=True):
                if parameter.grad is not None and parameter.requires_grad:
                    self.update(parameter.data, parameter.grad, slots)

    def update(self, values: Array, grad: Array, slots: dict[str, Array]) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Array]:
        """Return the optimizer's state as arrays by name, not copied."""
        arrays: dict[str, Array] = {"steps": np.array(self.steps), "lr": np.array(self.lr)}
        for index, slots in enumerate(self.slots):
            arrays |= {f"{index}.{name}": array for name, array in slots.items()}
        return arrays

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Restore what :meth:`state_dict` returned; nothing changes unless everything fits."""
        slots: list[dict[str, Array]] = [{} for _ in self.params]
        for key, array in arrays.items():
            if key in ("steps", "lr"):
                continue
            index, _, name = key.partition(".")
            if not index.isdecimal() or int(index) >= len(slots) or name not in self.slot_names:
                raise CheckpointError(f"unknown key {key!r} for {type(self).__name__}")
            wanted = () if name == "step" else self.params[int(index)].shape
            if array.shape != wanted:
                raise CheckpointError(
                    f"optimizer key {key!r} has shape {array.shape}, the parameter needs {wanted}"
                )
            slots[int(index)][name] = array.copy()
        missing = [name for name in ("steps", "lr") if name not in arrays]
        for number, found in enumerate(slots):
            absent = set(self.slot_names).difference(found) if found else ()
            missing += [f"{number}.{name}" for name in sorted(absent)]
        if missing:
            raise CheckpointError(f"missing key {missing[0]!r} for {type(self).__name__}")
        for name in ("steps", "lr"):
            if arrays[name].shape != ():
                raise CheckpointError(f"{name!r} has shape {arrays[name].shape}, needs ()")
        self.steps, self.lr = int(arrays["steps"]), float(arrays["lr"])
        self.slots = slots


class SGD(Optimizer):
    """Gradient descent, with momentum and weight decay on request."""

    slot_names = ("velocity",)

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay)
        if not momentum >= 0:
            raise SettingError(f"momentum must be at least 0, got {momentum}")
        self.momentum = momentum

    def update(self, values: Array, grad: Array, slots: dict[str, Array]) -> None:
        if self.momentum and "velocity" not in slots:
            slots["velocity"] = np.zeros_like(values)
        run(
            "sgd_step",
            values,
            grad,
            slots.get("velocity"),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


class Adam(Optimizer):
    """Steps scaled by running moments of the gradient; weight decay is added to the gradient."""

    slot_names = ("first", "second", "step")
    decoupled = False

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise SettingError(f"betas must be in [0, 1), got {betas}")
        if not eps >= 0:
            raise SettingError(f"eps must be at least 0, got {eps}")
        self.betas = betas
        self.eps = eps

    def update(self, values: Array, grad: Array, slots: dict[str, Array]) -> None:
        if not slots:
            slots["first"], slots["second"] = np.zeros_like(values), np.zeros_like(values)
            slots["step"] = np.zeros((), np.int64)
        slots["step"] += 1
        run(
            "adam_step",
            values,
            grad,
            slots["first"],
            slots["second"],
            step=int(slots["step"]),
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled=self.decoupled,
        )


class AdamW(Adam):
    """Adam with weight decay applied to the weights themselves."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
