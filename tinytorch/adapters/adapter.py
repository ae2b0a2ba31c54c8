"""What an adapter offers, and how the one for a model is found."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tinytorch.adapters.layer_watch import entering_layers
from tinytorch.adapters.records import Recording
from tinytorch.errors import ModelError, TinyTorchError

__all__ = ["Adapter", "ParameterSpec", "adapter_for"]

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter or buffer of a model, once, under its first name; `path` is its layer."""

    name: str
    path: str
    size: int
    nbytes: int
    is_trainable: bool
    is_buffer: bool = False


class Adapter(ABC):
    """One framework, seen through what the performance tools need of it."""

    name: str
    methods: tuple[str, ...] = ("forward",)
    """The methods of a layer that count as calls of it."""

    # ------------------------------------------------------------ the model

    @abstractmethod
    def modules(self, model: Any) -> Mapping[str, Any]:
        """Give every layer once by its path; the model itself is ""."""

    @abstractmethod
    def parameters(self, model: Any) -> tuple[ParameterSpec, ...]:
        """Give parameters and buffers, with the bytes that they really hold; shared ones once."""

    @abstractmethod
    def device(self, model: Any, inputs: tuple[Any, ...]) -> str:
        """Give the device of the model: `cpu`, `cuda:0`; raise if an input is elsewhere."""

    @abstractmethod
    def clone(self, model: Any) -> Any:
        """Copy a model, with its sharing and without its hooks."""

    # ------------------------------------------------------------ running it

    @abstractmethod
    def without_gradients(self) -> AbstractContextManager[Any]:
        """Run a block without building a graph."""

    @abstractmethod
    def preserving(self, model: Any, *, parameters: bool = False) -> AbstractContextManager[None]:
        """Put gradients, buffers and random state back after a block; parameters on request."""

    @abstractmethod
    def scalar_loss(self, output: Any) -> Any:
        """Give the loss in an output, or else the sum of its floating-point tensors."""

    @abstractmethod
    def backward(self, loss: Any) -> None:
        """Run the backward pass of a scalar."""

    @abstractmethod
    def make_optimizer(self, model: Any, name: str) -> Any:
        """Make the optimizer `sgd`, `adam` or `adamw` for a model's parameters."""

    @abstractmethod
    def optimizer_step(self, optimizer: Any) -> None:
        """Update the parameters."""

    @abstractmethod
    def drop_gradients(self, model: Any) -> None:
        """Free the gradients of the parameters, as a training step does before it begins."""

    # ------------------------------------------------------------ watching it

    @abstractmethod
    def stamp(self, device: str) -> Callable[[], Any]:
        """Give a function that marks a moment on the time line of a device."""

    def forget_marks(self) -> None:  # noqa: B027 - only devices with marks of their own need it
        """Allow that marks made so far are used again."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> float:
        """Give the time between two marks; on a GPU after :meth:`synchronize`."""

    @abstractmethod
    def synchronize(self, device: str) -> None:
        """Wait until the device has done what it was given."""

    def hold_back(self, device: str, seconds: float) -> Callable[[], bool] | None:
        """Let a device wait, so that what it is given queues up and then runs without gaps.

        Gives a function that tells whether the device still waits; None for a device that does not
        run behind the program.
        """
        return None

    @abstractmethod
    def record(
        self,
        model: Any,
        step: Step,
        *,
        device: str,
        inputs: tuple[Any, ...] = (),
        optimizer: Any = None,
    ) -> Recording:
        """Run `step` once and record its operations and memory. This is slow."""

    @abstractmethod
    def example(self, shape: tuple[int, ...], model: Any) -> Any:
        """Make an input of a shape: normal numbers, or token ids where the model wants these."""

    @abstractmethod
    def digest(self, output: Any) -> Any:
        """Give a few numbers that differ when outputs differ, to see whether two calls agree."""

    @contextmanager
    def naming_failures(self, model: Any) -> Iterator[None]:
        """Turn an exception inside of a layer into a ModelError that names the layer."""
        failed: list[str] = []

        def leave(path: str, error: BaseException | None, output: Any) -> None:
            if error is not None:
                failed.append(path)

        modules = self.modules(model)
        try:
            with entering_layers(modules, lambda path: None, leave, methods=self.methods):
                yield
        except TinyTorchError:
            raise
        except Exception as error:
            path = failed[0] if failed else ""
            where = f"layer {path!r} ({type(modules[path]).__name__})" if path else "the model"
            raise ModelError(f"{where} raised {type(error).__name__}: {error}") from error


def adapter_for(model: Any) -> Adapter:
    """Give the adapter of a model's framework, looking only at frameworks that are imported.

    Anything that is not a PyTorch module, nor holds one, is watched as code of TinyTorch.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        from tinytorch.adapters.pytorch import TorchAdapter, holds_torch_module

        if holds_torch_module(model):
            return TorchAdapter()
    from tinytorch.adapters.core import CoreAdapter

    return CoreAdapter()
