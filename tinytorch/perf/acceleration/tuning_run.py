"""Running a model to see which operations it consists of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.core.dispatch import KernelCall, recording
from tinytorch.core.module import Module
from tinytorch.errors import SettingError
from tinytorch.perf.acceleration.model_backend import without_model_backends
from tinytorch.perf.acceleration.size_classes import size_class
from tinytorch.workloads.targets import load_workload
from tinytorch.workloads.workload import Workload

__all__ = ["class_of", "operations_of", "prepared", "recorded_calls"]


@contextmanager
def prepared(model: Any, inputs: Any = None) -> Iterator[Workload]:
    """Give the workload to run, without gradients; the model stays as it was.

    Backends of its own are lifted: inside the block the model runs on that of the caller.
    """
    workload = _as_workload(model, inputs)
    adapter = adapter_for(workload.model, workload.arguments)
    if adapter.name != "core":
        raise SettingError(
            f"{workload.name} is a model of {adapter.name}; the kernels here compute models of "
            "TinyTorch"
        )
    with ExitStack() as stack:
        stack.enter_context(adapter.preserving(workload.model))
        stack.enter_context(adapter.without_gradients())
        if isinstance(workload.model, Module):
            stack.enter_context(without_model_backends(workload.model))
        yield workload


def recorded_calls(workload: Workload) -> list[KernelCall]:
    """Run a workload once and give the kernels that it ran."""
    calls: list[KernelCall] = []
    with recording(calls.append):
        workload.run()
    return calls


def operations_of(workload: Workload) -> list[tuple[str, str]]:
    """Run a workload once and give its operations and their size classes, each once."""
    return list(dict.fromkeys(class_of(call) for call in recorded_calls(workload)))


def class_of(call: KernelCall) -> tuple[str, str]:
    """Give the operation of a recorded call and its size class."""
    shapes = [spec.shape for spec in call.inputs]
    dtypes = [str(spec.dtype) for spec in call.inputs]
    return call.kind, size_class(call.kind, shapes, dtypes, call.settings)


def _as_workload(model: Any, inputs: Any) -> Workload:
    if isinstance(model, str):
        model = load_workload(model)
    if isinstance(model, Workload):
        if inputs is not None:
            raise SettingError("inputs= is for models; a workload has inputs of its own")
        return model
    if inputs is None:
        raise SettingError(
            f"what is {type(model).__name__} to be called with? Give inputs=x, or a Workload"
        )
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    return Workload(type(model).__name__, model, arguments)
