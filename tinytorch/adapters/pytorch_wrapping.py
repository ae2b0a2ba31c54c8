"""A PyTorch model that is called in another way. Imported after torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

__all__ = ["PreparedModel", "WrappedModel", "around_calls", "innermost", "wrappers_of"]


class WrappedModel(nn.Module):
    """A model inside of another call: the layers are those of `model`, and so is every attribute.

    Subclasses say how it is called: `around_call`, or `forward`. The mode (`train`, `eval`) is that
    of the model. One that moves inputs of the processor itself has an attribute
    `fetches_inputs_to`, the device.
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

    def around_call(self) -> AbstractContextManager[None]:
        """Give a block for settings of torch that code sees when it is compiled and when it runs.

        `forward` enters it by itself, unless it is compiled: then it is entered around all of that.
        """
        return nullcontext()

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model inside of that block."""
        if torch.compiler.is_compiling():
            return self.model(*inputs, **keywords)
        with self.around_call():
            return self.model(*inputs, **keywords)


class PreparedModel(WrappedModel):
    """A model that was compiled or captured: a copy of it starts without what was prepared."""

    not_copied: ClassVar[tuple[str, ...]] = ()
    """Attributes that belong to this one alone."""

    def _set_up(self) -> None:
        """Make the attributes that are not copied."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Do without what was prepared for weights that were moved or converted."""
        raise NotImplementedError

    def _apply(self, *arguments: Any, **settings: Any) -> Any:
        """Move or convert the model, as `to()` does."""
        changed: Any = super()._apply(*arguments, **settings)  # type: ignore[no-untyped-call]
        self._forget()
        return changed

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {name: value for name, value in state.items() if name not in self.not_copied}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._set_up()


def wrappers_of(model: Any) -> Iterator[WrappedModel]:
    """Yield the wrappers around a model, the outermost first."""
    while isinstance(model, WrappedModel):
        yield model
        model = model.model


@contextmanager
def around_calls(model: Any) -> Iterator[None]:
    """Enter the blocks of all wrappers around a model, for who goes past their `forward`."""
    with ExitStack() as entered:
        for wrapper in wrappers_of(model):
            entered.enter_context(wrapper.around_call())
        yield


def innermost(model: Any) -> Any:
    """Give the model inside of all wrappers."""
    for wrapper in wrappers_of(model):
        model = wrapper.model
    return model
