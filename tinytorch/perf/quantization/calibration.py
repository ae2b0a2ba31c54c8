"""Calibration: what the inputs of each layer look like on typical data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.core.autograd import no_grad
from tinytorch.core.generation import without_attached_cache
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.formats.ranges import RangeObserver, RangeStatistics
from tinytorch.perf.quantization.layer_catalog import CATALOG
from tinytorch.perf.quantization.samples import Batches
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["called_layers", "calling_plainly", "observe_inputs", "observe_layers", "switch_to_eval"]

See = Callable[[str, Any], None]
NO_DATA = (
    "static quantization needs calibration data: give the workload `calibration`, some typical "
    "inputs from the training data; mode='dynamic' needs none"
)


def switch_to_eval(modules: Mapping[str, Any]) -> None:
    """Let all modules of a copy compute as they will be used."""
    for module in modules.values():
        if isinstance(module, Module):
            module.training = False


@contextmanager
def calling_plainly(model: Any) -> Iterator[None]:
    """Call a model without a graph, and without a cache that would remember what it saw."""
    with no_grad(), ExitStack() as stack:
        if hasattr(model, "attached_cache"):
            stack.enter_context(without_attached_cache(model))
        yield


@contextmanager
def _watching(layers: Mapping[str, Module], see: See) -> Iterator[None]:
    """Call `see(path, input)` before each forward pass of a layer, also if nobody calls the layer.

    `forward` is replaced on the object, so that ``layer.forward(x)`` is seen as well.
    """
    with ExitStack() as stack:
        for path, layer in layers.items():
            vars(layer)["forward"] = _telling(see, path, layer.forward)
            stack.callback(vars(layer).pop, "forward")
        yield


def _telling(see: See, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    def tell(*inputs: Any, **settings: Any) -> Any:
        see(path, next(iter((*inputs, *settings.values())), None))
        return forward(*inputs, **settings)

    return tell


def called_layers(model: Any, layers: Mapping[str, Module], workload: Workload) -> set[str]:
    """Call a model on the inputs of a workload and tell which of these layers computed."""
    called: set[str] = set()
    with calling_plainly(model), _watching(layers, lambda path, _: called.add(path)):
        call_model(model, *workload.inputs, **workload.keywords)
    return called


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
    for number, arguments in enumerate(workload.calibration):

        def see(path: str, x: Any, number: int = number) -> None:
            observer = observers.setdefault(path, RangeObserver())
            if not isinstance(x, Tensor) or not CATALOG[type(layers[path])].multiplies:
                return
            try:
                observer.update(x.data)
            except TinyTorchError as error:
                raise SettingError(
                    f"calibration batch {number}, input of layer {path!r}: {error}"
                ) from error

        # what inputs are given by name may also come first in a batch
        keywords = workload.keywords if len(arguments) <= len(workload.inputs) else {}
        try:
            with calling_plainly(model), _watching(layers, see):
                call_model(model, *arguments, **keywords)
        except SettingError:
            raise
        except TinyTorchError as error:
            raise SettingError(
                f"calibration batch {number} does not fit the model: {error}"
            ) from error
    seen = {path: observer.statistics for path, observer in observers.items()}
    multiplied = [seen[path] for path in seen if CATALOG[type(layers[path])].multiplies]
    if multiplied and not any(each.count for each in multiplied):
        raise SettingError(f"the calibration data is empty: no layer got a number. {NO_DATA}")
    return seen
