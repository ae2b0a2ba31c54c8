"""A PyTorch model that is called in another way. Imported after torch."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["WrappedModel", "innermost"]


class WrappedModel(nn.Module):
    """A model inside of another call: the layers are those of `model`, and so is every attribute.

    Subclasses say how it is called: `forward`. The mode (`train`, `eval`) is that of the model. One
    that moves inputs of the processor itself has an attribute `fetches_inputs_to`, the device.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # while it is made or copied
                raise
            return getattr(self.model, name)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model as it is."""
        return self.model(*inputs, **keywords)


def innermost(model: Any) -> Any:
    """Give the model inside of all wrappers."""
    while isinstance(model, WrappedModel):
        model = model.model
    return model
