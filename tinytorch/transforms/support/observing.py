"""Watching the layers of a model at work on the data of a workload, whatever its framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

import numpy as np

from tinytorch.core.kv_cache import KVCache
from tinytorch.errors import SettingError, TinyTorchError, first_line
from tinytorch.models.adapter import Array, adapter_for, wrapping_layers
from tinytorch.models.inputs import ModelCall
from tinytorch.models.workload import Workload, call_model

See = Callable[[str, Any], None]
SeeCall = Callable[[str, tuple[Any, ...], Any], None]


def check_no_cache(modules: Mapping[str, Any]) -> None:
    """Raise if a cache is attached to a model whose layers are going to change their sizes."""
    for path, module in modules.items():
        attached = getattr(module, "__dict__", {}).get("forward")
        if isinstance(getattr(attached, "cache", None), KVCache):
            raise SettingError(
                f"a key-value cache is attached to {path or 'the model'}, which would not fit the "
                "changed copy; call disable_kv_cache(model) before, and enable_kv_cache on the copy"
            )


# ---------------------------------------------------------------- the calls of a workload


def calls_of(workload: Workload) -> list[ModelCall]:
    """Return the call on the inputs, if there are some, and those on the calibration data."""
    return [*([workload.call] if workload.arguments else []), *workload.calibration_calls]


def run_call(model: Any, call: ModelCall, *, fast_paths: bool = False) -> Any:
    """Call a copy of a model in evaluation mode, which it stays in, and return its output."""
    adapter = adapter_for(model, call.values)
    adapter.switch_to_eval(model)
    try:
        with adapter.plain_calls(model, fast_paths=fast_paths):
            return call_model(model, *adapter.copy_inputs(call.arguments), **call.keywords)
    except SettingError:
        raise
    except TinyTorchError as error:
        raise SettingError(f"{call.name} does not fit the model: {error}") from error
    except Exception as error:  # whatever a model raises for inputs that it cannot take
        raise SettingError(f"{call.name} does not fit the model: {first_line(error)}") from error


def outputs_of(model: Any, call: ModelCall, *, fast_paths: bool = False) -> list[Array]:
    """Return the floating-point arrays of one call of a copy of a model."""
    output = run_call(model, call, fast_paths=fast_paths)
    arrays = adapter_for(model, call.values).arrays(output)
    return [each for each in arrays if each.dtype.kind == "f"]


def relative_change(expected: Sequence[Array], found: Sequence[Array]) -> tuple[float, str]:
    """Return the root mean square of the change over that of the outputs, or why there is none."""
    if [each.shape for each in expected] != [each.shape for each in found]:
        return math.inf, "the outputs of the model have another shape"
    signal = noise = 0.0
    for one, other in zip(expected, found, strict=True):
        exact = one.astype(np.float64)
        signal += float(np.square(exact).sum())
        noise += float(np.square(exact - other).sum())
    if noise == 0:
        return 0.0, ""
    change = math.sqrt(noise / signal) if signal > 0 else math.inf
    return (change, "") if math.isfinite(change) else (math.inf, "the outputs are not finite")


# ---------------------------------------------------------------- the layers that they call


@contextmanager
def watching(layers: Mapping[str, Any], see: SeeCall) -> Iterator[None]:
    """Call `see(path, inputs, output)` after each forward pass of these layers."""

    def wrapper(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*inputs: Any, **settings: Any) -> Any:
            output = forward(*inputs, **settings)
            see(path, (*inputs, *settings.values()), output)
            return output

        return tell

    with wrapping_layers(layers, ("forward",), wrapper):
        yield


@contextmanager
def _watching_inputs(layers: Mapping[str, Any], see: See) -> Iterator[None]:
    """Call `see(path, input)` before each forward pass of these layers."""

    def wrapper(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*inputs: Any, **settings: Any) -> Any:
            see(path, next(iter((*inputs, *settings.values())), None))
            return forward(*inputs, **settings)

        return tell

    with wrapping_layers(layers, ("forward",), wrapper):
        yield


def called_layers(
    model: Any, layers: Mapping[str, Any], workload: Workload, *, fast_paths: bool = False
) -> set[str]:
    """Call a copy of a model once on the data of a workload and tell which of these layers ran."""
    called: set[str] = set()
    with _watching_inputs(layers, lambda path, _: called.add(path)):
        run_call(model, calls_of(workload)[0], fast_paths=fast_paths)
    return called


def see_calibration(model: Any, layers: Mapping[str, Any], workload: Workload, see: See) -> None:
    """Run the calibration data through a copy: `see(path, input)` for each call of these layers.

    An error of `see`, or of the model, names the batch.
    """
    for call in calls_of(workload)[1 if workload.arguments else 0 :]:

        def see_in_batch(path: str, x: Any, name: str = call.name) -> None:
            try:
                see(path, x)
            except TinyTorchError as error:
                raise SettingError(f"{name}, input of layer {path!r}: {error}") from error

        with _watching_inputs(layers, see_in_batch):
            run_call(model, call)


# ---------------------------------------------------------------- layers that the user wants to
# stay as they are, by patterns of their paths


def checked_patterns(keep: Any) -> tuple[str, ...]:
    """Return patterns as a tuple; raise for a single text, which is a sequence as well."""
    if not isinstance(keep, (tuple, list)):
        raise SettingError(f"keep is a tuple of patterns: keep=({str(keep)!r},)")
    return tuple(keep)


def why_kept(path: str, keep: Iterable[str]) -> str:
    """Return which pattern keeps a layer unchanged, or ""."""
    pattern = next((each for each in keep if _matches(path, each)), None)
    return "" if pattern is None else f"kept by keep={pattern!r}"


def idle_patterns(keep: Iterable[str], paths: Collection[str], *, change: str) -> tuple[str, ...]:
    """Return a note for each pattern that matches no layer, as with a typing error.

    `change` says what happens to the layers at these paths, such as "quantized".
    """
    return tuple(
        f"keep={pattern!r} matches no layer that can be {change}"
        for pattern in keep
        if not any(_matches(path, pattern) for path in paths)
    )


def _matches(path: str, pattern: str) -> bool:
    """Return whether a pattern matches a layer, or one that the layer is a part of."""
    return fnmatch(path, pattern) or fnmatch(path, f"{pattern}.*")


# ---------------------------------------------------------------- what transforms that train a
# copy of a model are given to train it with


def check_loader(loader: Any) -> None:
    """Raise unless one can go over the data several times."""
    if not hasattr(loader, "__len__"):
        raise SettingError(
            f"training goes over the data several times, which a {type(loader).__name__} cannot; "
            "give a DataLoader or a list of batches"
        )


def check_optimizer(optimizer: Any) -> None:
    """Raise unless this is None, or a function of the parameters: those of a copy come later."""
    if not (optimizer is None or callable(optimizer)):
        raise SettingError(
            f"the optimizer is a function of the parameters of a copy, got "
            f"{type(optimizer).__name__}; write lambda parameters: SGD(parameters, lr=0.01)"
        )
