"""A PyTorch model that was compiled. Imported after torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.pytorch_capture import taken_bytes
from tinytorch.adapters.pytorch_compile import (
    compiled,
    refusals,
    uses_cuda_graphs,
    why_it_failed,
)
from tinytorch.adapters.pytorch_wrapping import PreparedModel
from tinytorch.errors import ModelError
from tinytorch.perf.acceleration.owned_outputs_torch import owned
from tinytorch.perf.acceleration.same_weights_torch import SameWeights
from tinytorch.workloads.preparation import Preparation

__all__ = ["CompiledModel"]

BACKEND = "inductor"
CALLS = 3
"""With CUDA graphs, the first call compiles, the second captures and the third replays."""


class CompiledModel(PreparedModel):
    """A model that `torch.compile` runs. A copy of it is compiled when it is first called.

    Outputs are the caller's own, also where a CUDA graph would overwrite them in the next call.
    Modes with CUDA graphs are for one thread: the one that called it first.

    Packed weights are packed again when those of the model change; only what is written through
    `.data` nobody sees. Arguments of more shapes or kinds than fit into that way of compiling let
    it be compiled once more, without packing.
    """

    not_copied = ("preparations", "_function", "_weights")

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: str = "default",
        dynamic: bool | None = None,
        freeze: bool = False,
    ) -> None:
        super().__init__(model)
        self._settings: dict[str, Any] = {"mode": mode, "dynamic": dynamic, "freeze": freeze}
        self._why_not_packed = ""
        self._set_up()

    def _set_up(self) -> None:
        """Forget whatever was compiled."""
        self.preparations: tuple[Preparation, ...] = ()
        is_frozen = self._settings["freeze"]
        self._function = compiled(
            self.model, backend=BACKEND, fullgraph=is_frozen, **self._settings
        )
        self._weights = SameWeights(self.model, also_numbers=True) if is_frozen else None
        # Says to everybody that the layers inside must not be touched.
        self._compiled_call_impl = self._call_impl

    def prepare(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> CompiledModel:
        """Compile for such arguments, and give the model itself; its state stays as it is."""
        adapter = TorchAdapter()
        place = adapter.device(self.model, (*inputs, *keywords.values()))
        before = taken_bytes(place)
        self._why_not_packed = ""
        started = perf_counter()
        try:
            with (
                adapter.preserving(self.model),
                adapter.without_gradients(),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")  # they are about torch's own code
                for _ in range(CALLS if uses_cuda_graphs(self._settings["mode"]) else 1):
                    given = adapter.copy_inputs(inputs)
                    named = adapter.copy_inputs(tuple(keywords.values()))
                    self(*given, **dict(zip(keywords, named, strict=True)))
                adapter.synchronize(place)
        except Exception as error:  # a compiler may raise anything
            raise ModelError(f"torch.compile failed: {why_it_failed(error)}") from error
        if self._why_not_packed:
            raise ModelError(f"the weights cannot be packed: {self._why_not_packed}")
        seconds, after = perf_counter() - started, taken_bytes(place)
        nbytes = None if before is None or after is None else max(0, after - before)
        self.preparations = (Preparation("compiled", seconds, nbytes),)
        return self

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the compiled model."""
        if self._weights is not None and not self._weights.still_hold():
            self._set_up()
        try:
            if not self.preparations:
                return self._first_call(inputs, keywords)
            return self._call_compiled(inputs, keywords)
        except refusals() as error:  # before anything is computed
            if not self._settings["freeze"]:
                raise
            self._why_not_packed = why_it_failed(error)
        told = f"it is compiled without packed weights from now on: {self._why_not_packed}"
        warnings.warn(told, RuntimeWarning, stacklevel=1)  # torch's own code calls this
        self._settings["freeze"] = False
        self._set_up()
        return self._first_call(inputs, keywords)

    def _first_call(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        started = perf_counter()
        output = self._call_compiled(inputs, keywords)
        self.preparations = (Preparation("compiled", perf_counter() - started),)
        if self._weights is not None:
            self._weights.ignore_what_changed()
        return output

    def _call_compiled(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not uses_cuda_graphs(self._settings["mode"]):
            return self._function(*inputs, **keywords)
        has_device: Any = torch.cuda.is_initialized
        # With gradients, graphs of earlier calls may still be needed.
        if has_device() and not torch.is_grad_enabled():
            mark_step: Any = torch.compiler.cudagraph_mark_step_begin
            mark_step()
        return owned(self._function(*inputs, **keywords))

    def _forget(self) -> None:
        """Pack the weights anew; code that was compiled looks at them itself."""
        if self._weights is not None:
            self._set_up()
