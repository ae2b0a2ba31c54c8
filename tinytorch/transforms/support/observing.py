"""Watching the layers of a TinyTorch model at work on the data of a workload."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, cast

from tinytorch.core.autograd import no_grad
from tinytorch.core.generation import without_attached_cache
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.module import Module
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.models.workload import Workload, call_model

if TYPE_CHECKING:
    from tinytorch.core.transformers import GPT

__all__ = [
    "called_layers",
    "calling_plainly",
    "check_loader",
    "check_no_cache",
    "check_optimizer",
    "checked_patterns",
    "idle_patterns",
    "see_calibration",
    "switch_to_eval",
    "why_kept",
]


See = Callable[[str, Any], None]


def switch_to_eval(modules: Mapping[str, Any]) -> None:
    """Let all modules of a copy compute as they will be used."""
    for module in modules.values():
        if isinstance(module, Module):
            module.training = False


def check_no_cache(modules: Mapping[str, Any]) -> None:
    """Raise if a cache is attached to a model whose layers are going to change their sizes."""
    for path, module in modules.items():
        attached = getattr(module, "__dict__", {}).get("forward")
        if isinstance(getattr(attached, "cache", None), KVCache):
            raise SettingError(
                f"a key-value cache is attached to {path or 'the model'}, which would not fit the "
                "changed copy; call disable_kv_cache(model) before, and enable_kv_cache on the copy"
            )


@contextmanager
def calling_plainly(model: Any) -> Iterator[None]:
    """Call a model without a graph, and without a cache that would remember what it saw."""
    with no_grad(), ExitStack() as stack:
        for module in model.modules() if isinstance(model, Module) else ():
            if "attached_cache" in vars(module):
                stack.enter_context(without_attached_cache(cast("GPT", module)))
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


def see_calibration(model: Any, layers: Mapping[str, Module], workload: Workload, see: See) -> None:
    """Run the calibration data through a model: `see(path, input)` for each call of these layers.

    An error of `see`, or of the model, names the batch.
    """
    for number, arguments in enumerate(workload.calibration):

        def see_in_batch(path: str, x: Any, number: int = number) -> None:
            try:
                see(path, x)
            except TinyTorchError as error:
                raise SettingError(
                    f"calibration batch {number}, input of layer {path!r}: {error}"
                ) from error

        # what inputs are given by name may also come first in a batch
        keywords = workload.keywords if len(arguments) <= len(workload.inputs) else {}
        try:
            with calling_plainly(model), _watching(layers, see_in_batch):
                call_model(model, *arguments, **keywords)
        except SettingError:
            raise
        except TinyTorchError as error:
            raise SettingError(
                f"calibration batch {number} does not fit the model: {error}"
            ) from error


# ---------------------------------------------------------------- layers that the user wants to
# stay as they are, by patterns of their paths


def checked_patterns(keep: Any) -> tuple[str, ...]:
    """Give patterns as a tuple; a single text is an error, because it is a sequence as well."""
    if not isinstance(keep, (tuple, list)):
        raise SettingError(f"keep is a tuple of patterns: keep=({str(keep)!r},)")
    return tuple(keep)


def why_kept(path: str, keep: Iterable[str]) -> str:
    """Say which pattern keeps a layer as it is, or nothing."""
    pattern = next((each for each in keep if _matches(path, each)), None)
    return "" if pattern is None else f"kept by keep={pattern!r}"


def idle_patterns(keep: Iterable[str], paths: Collection[str], *, change: str) -> tuple[str, ...]:
    """Give a note for each pattern that means no layer, as with a typing error.

    `change` says what happens to the layers at these paths, such as "quantized".
    """
    return tuple(
        f"keep={pattern!r} matches no layer that can be {change}"
        for pattern in keep
        if not any(_matches(path, pattern) for path in paths)
    )


def _matches(path: str, pattern: str) -> bool:
    """Tell whether a pattern means a layer, or one that the layer is a part of."""
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
