"""Holding a model ready to be measured, and leaving it as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tinytorch.adapters.adapter import Adapter

__all__ = ["held_ready"]


@contextmanager
def held_ready(adapter: Adapter, model: Any) -> Iterator[bool]:
    """Hold a model in evaluation mode and without gradients, and say whether it was training.

    Afterwards it has the mode, gradients, buffers and random state that it had before.
    """
    layers = [
        each
        for each in adapter.modules(model).values()
        if isinstance(getattr(each, "training", None), bool)
    ]
    was_training = any(each.training for each in layers)
    with adapter.preserving(model), adapter.without_gradients(), _in_evaluation_mode(layers):
        yield was_training


@contextmanager
def _in_evaluation_mode(layers: Iterable[Any]) -> Iterator[None]:
    before = [(layer, layer.training, "training" in _own(layer)) for layer in layers]
    try:
        for layer, was_training, _ in before:
            if was_training:
                layer.training = False
        yield
    finally:
        for layer, was_training, has_own in before:
            # What runs inside may change modes too, as `evaluate` often does.
            if layer.training is not was_training:
                layer.training = was_training
            if not has_own:  # it has its mode from its class, and should again
                _own(layer).pop("training", None)


def _own(layer: Any) -> dict[str, Any]:
    return getattr(layer, "__dict__", {})
