"""A short text that says which workload this is: the same in every process, for the same one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import Adapter, adapter_for, owner_of
from tinytorch.adapters.core_tensors import own_tensors
from tinytorch.adapters.values import leaves
from tinytorch.workloads.workload import Workload

__all__ = ["workload_fingerprint"]

DIGEST_BYTES = 16
Add = Callable[[str, Any], None]


class UnreadableError(Exception):
    """A model with numbers that nobody can read."""


def workload_fingerprint(workload: Workload) -> str:
    """Give a hash of everything that can be seen of a workload.

    In it are the values of parameters, buffers, inputs and calibration data, classes and settings
    of the layers, the files that define them and `evaluate`, and the arrays and numbers that
    `evaluate` holds itself. What code reads from elsewhere, such as a file, is not. A model whose
    numbers cannot be read, as with weights packed by PyTorch, gets another fingerprint each time:
    it equals nothing.
    """
    digest = blake2b(digest_size=DIGEST_BYTES)
    adapter = adapter_for(workload.model, workload.arguments)
    add = partial(_add, digest.update, adapter)
    try:
        _add_model(add, adapter, workload.model)
        _add_tree(add, "inputs", list(workload.inputs))
        _add_tree(add, "keywords", dict(workload.keywords))
        _add_tree(add, "calibration", list(workload.calibration))
        for place, held in enumerate(_held_by(workload.evaluate)):
            _add_tree(add, f"evaluate.{place}", held)
    except Exception:  # whatever a foreign tensor raises, the workload itself may be fine
        return secrets.token_hex(DIGEST_BYTES)
    add("metric", workload.metric)
    code = [] if workload.evaluate is None else list(_code_of(workload.evaluate))
    _add_code(add, [*code, *_code_of_layers(adapter, workload.model)])
    return digest.hexdigest()


def _add(update: Callable[[Any], None], adapter: Adapter, name: str, value: Any) -> None:
    """Add one value under its name: a text, bytes, or what an adapter can turn into arrays."""
    update(f"\0{name}\0{type(value).__name__}\0".encode("utf-8", "surrogatepass"))
    if isinstance(value, str):
        update(value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        update(value)
    for array in adapter.arrays(value):
        update(f"{array.dtype.str}{array.shape}".encode())
        update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _add_tree(add: Add, path: str, value: Any) -> None:
    """Add what lies in lists, tuples and mappings, with its place."""
    if isinstance(value, Mapping):
        for key in value:
            _add_tree(add, f"{path}.{key}", value[key])
    elif isinstance(value, list | tuple):
        add(path, str(len(value)))
        for index, item in enumerate(value):
            _add_tree(add, f"{path}.{index}", item)
    else:
        add(path, value)


# ---------------------------------------------------------------- the model


def _add_model(add: Add, adapter: Adapter, model: Any) -> None:
    unseen = {spec.name for spec in adapter.parameters(model)}
    if adapter.packed_layers(model):
        raise UnreadableError
    seen: set[int] = set()
    for path, module in adapter.modules(model).items():
        add(path, type(module).__qualname__)
        for name, value in _plain_settings(module):
            _add_tree(add, f"{path}:{name}", value)
        for name, tensor in TENSORS_OF[adapter.name](module):
            full = f"{path}.{name}" if path else name
            unseen.discard(full)
            if id(tensor) not in seen:  # what layers share is read once
                seen.add(id(tensor))
                add(full, tensor)
    if unseen:
        raise UnreadableError


def _registered(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield parameters and buffers of a module of PyTorch."""
    if hasattr(module, "named_buffers"):
        yield from module.named_parameters(recurse=False)
        yield from module.named_buffers(recurse=False)


TENSORS_OF: dict[str, Callable[[Any], Iterable[tuple[str, Any]]]] = {
    "core": own_tensors,
    "pytorch": _registered,
}
"""Framework -> what gives the tensors that a layer holds itself."""


def _plain_settings(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield numbers, texts and arrays that a layer, or its configuration, holds by name.

    Private ones may be counters or addresses; which code a configuration chooses is private, too.
    """
    for name, value in sorted(getattr(module, "__dict__", {}).items()):
        if type(value).__name__.endswith("Config"):
            for inner, setting in sorted(vars(value).items()):
                is_ours = not inner.startswith("_") or "implementation" in inner
                if is_ours and _is_plain(setting):
                    yield f"{name}.{inner}", setting
        elif not name.startswith("_") and _is_plain(value):
            yield name, value


def _is_plain(value: Any) -> bool:
    plain = (str, bool, int, float, np.ndarray, np.generic, type(None))
    return all(isinstance(leaf, plain) for leaf in leaves(value))


# ---------------------------------------------------------------- the code


def _code_of_layers(adapter: Adapter, model: Any) -> Iterator[CodeType]:
    kinds = {type(module): None for module in adapter.modules(model).values()}
    for kind in (parent for each in kinds for parent in each.__mro__):
        if kind.__module__.partition(".")[0] == "torch":
            continue  # of a version that is known, and changed by torch.compile when it begins
        for member in vars(kind).values():
            yield from _code_of(member)
    yield from _code_of(owner_of(model))


def _code_of(function: Any) -> Iterator[CodeType]:
    owner = owner_of(function)
    for place in (owner, vars(type(owner)).get("__call__")):  # a function, or what acts as one
        found = getattr(place, "__code__", None)
        if isinstance(found, CodeType):
            yield found


def _held_by(function: Any) -> Iterator[Any]:
    """Yield what a function brings with it: bound arguments, defaults, what it closes over.

    Of an object that acts as a function, its attributes.
    """
    while isinstance(function, partial):
        yield list(function.args)
        yield dict(function.keywords)
        function = function.func
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if owner is None and not hasattr(function, "__code__"):
        owner = function
    for name, value in sorted(getattr(owner, "__dict__", {}).items()):
        yield {name: value}
    yield list(getattr(function, "__defaults__", None) or ())
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty: the function was never called
            continue


def _add_code(add: Add, codes: Iterable[CodeType]) -> None:
    """Add the files that hold some code, or the code itself where it is in no file."""
    files: dict[str, None] = {}
    for code in codes:
        if Path(code.co_filename).is_file():
            files[code.co_filename] = None
        else:
            _add_bare_code(add, code)
    for content in sorted({Path(file).read_bytes() for file in files}):
        add("file", content)


def _add_bare_code(add: Add, code: CodeType) -> None:
    add(code.co_qualname, code.co_code)
    add("names", repr(code.co_names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_bare_code(add, constant)
        else:
            add("constant", repr(constant))
