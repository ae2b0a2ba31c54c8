"""How an exported model is called and what it returns, as data. Imported after torch.

An engine takes tensors in order and returns tensors in order. What lies around them (names,
tuples, dictionaries, constants) is a skeleton: plain JSON data with a mark in the place of each
tensor.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tinytorch.codec import Coded
from tinytorch.errors import CheckpointError, ModelError
from tinytorch.transforms.engines.files import Argument

TENSOR = "tensor"
PLAIN = (type(None), bool, int, float, str)
TRUSTED = "transformers.modeling_outputs"
"""Classes of this module are made by their name; a file can ask for no other class."""


@dataclass(frozen=True)
class Signature(Coded):
    """The arguments of `forward`, the tensors in them, and the skeletons around them.

    `parameters` has the name and kind of each argument, and whether it may be left out.
    """

    parameters: tuple[tuple[str, str, bool], ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[str, ...]
    arguments: Any
    output: Any

    @cached_property
    def _callable(self) -> inspect.Signature:
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect._ParameterKind[kind],
                    default=None if is_optional else inspect.Parameter.empty,
                )
                for name, kind, is_optional in self.parameters
            ]
        )

    def tensors(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of `inputs`; raise if it is another call."""
        found: list[torch.Tensor] = []
        arguments = skeleton(bound(self._callable, inputs, keywords).arguments, found.append)
        if arguments != self.arguments:
            raise ModelError(
                f"it was exported for calls with {', '.join(map(str, self.inputs))}, and is called "
                "with other arguments; optimize it again with these as inputs"
            )
        for argument, tensor in zip(self.inputs, found, strict=True):
            other = argument.why_not(tensor)
            if other:
                raise ModelError(
                    f"the model was exported for {argument}, and gets {other}; optimize it again "
                    "with such inputs"
                )
        return found

    def nested(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return tensors in the nesting of the model's output."""
        return filled(self.output, iter(tensors))


def parameters_of(forward: Callable[..., Any]) -> tuple[tuple[str, str, bool], ...]:
    """Return the arguments of a function as a `Signature` has them."""
    return tuple(
        (each.name, each.kind.name, each.default is not inspect.Parameter.empty)
        for each in inspect.signature(forward).parameters.values()
    )


def bound(
    signature: inspect.Signature, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return arguments by their names, without those that are None."""
    try:
        found = signature.bind(*inputs, **keywords)
    except TypeError as error:
        raise ModelError(f"the model cannot be called so: {error}") from error
    given = {name: value for name, value in found.arguments.items() if value is not None}
    return inspect.BoundArguments(signature, given)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype as in `float32`."""
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- skeletons


def skeleton(value: Any, see: Callable[[torch.Tensor], object]) -> Any:
    """Return what lies around tensors as plain data; `see` gets each tensor in order."""
    if isinstance(value, torch.Tensor):
        see(value)
        return TENSOR
    if type(value) in PLAIN:
        return {"value": value}
    if type(value) in (list, tuple):
        return {type(value).__name__: [skeleton(each, see) for each in value]}
    if isinstance(value, Mapping):
        items = {str(name): skeleton(each, see) for name, each in value.items()}
        return {"items": items} | _class_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {"items": {name: skeleton(each, see) for name, each in parts.items()}} | _class_of(
            value
        )
    raise ModelError(f"an engine neither takes nor makes a {type(value).__name__}")


def _class_of(value: Any) -> dict[str, str]:
    kind = type(value)
    return {} if kind is dict else {"class": f"{kind.__module__}.{kind.__qualname__}"}


def filled(skeleton: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return a value with tensors in a skeleton."""
    if skeleton == TENSOR:
        return next(tensors)
    if "value" in skeleton:
        return skeleton["value"]
    for kind in (list, tuple):
        if kind.__name__ in skeleton:
            return kind(filled(each, tensors) for each in skeleton[kind.__name__])
    items = {name: filled(each, tensors) for name, each in skeleton["items"].items()}
    return class_named(skeleton["class"])(**items) if "class" in skeleton else items


def class_named(name: str) -> Any:
    """Return a class that this process has imported, or one of the outputs of transformers."""
    module, _, kind = name.rpartition(".")
    if module == TRUSTED:
        import transformers.modeling_outputs as outputs

        return getattr(outputs, kind)
    found = getattr(sys.modules.get(module), kind, None)
    if found is None:
        raise CheckpointError(
            f"the model returns a {name}; import {module or name} before loading it"
        )
    return found


def names_in(skeleton: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the tensors in a skeleton, such as `hidden_states.0`."""
    if skeleton == TENSOR:
        yield name or "output"
        return
    inside = f"{name}." if name else ""
    for key in ("list", "tuple"):
        for place, each in enumerate(skeleton.get(key, ())):
            yield from names_in(each, f"{inside or 'output.'}{place}")
    for key, each in skeleton.get("items", {}).items():
        yield from names_in(each, f"{inside}{key}")
