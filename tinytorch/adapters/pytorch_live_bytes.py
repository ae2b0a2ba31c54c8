"""The most bytes that are alive at once while PyTorch runs, without books on every operator.

The recorder gives the same number and much more, and takes twenty times as long as a call that is
made of many small operators, such as a generated text; this takes about five times as long.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.adapters.pytorch_packed import packed_weights
from tinytorch.adapters.pytorch_recorder import (
    FRESH,
    decomposed,
    operator_kind,
    rule_of,
    running_eagerly,
    unfolds,
)
from tinytorch.adapters.pytorch_tensors import flat_tensors, parts_of, storage_of

__all__ = ["peak_of_live_bytes"]


def peak_of_live_bytes(
    step: Callable[[], object], *, modules: Mapping[str, Any], inputs: Iterable[torch.Tensor]
) -> int | None:
    """Run `step` once, and give the most bytes that were alive at once; None where nothing ran.

    Parameters, buffers and inputs are part of it, the scratch memory inside of operators is not.
    Packed weights that cannot be unpacked are not either. Compiled models run as they were written.
    """
    books = _LiveBytes()
    for module in modules.values():
        books.total += _packed_bytes(module)
        if isinstance(module, torch.nn.Module):
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                books.enter(tensor, was_there=True)
    for tensor in inputs:
        books.enter(tensor, was_there=True, is_input=True)
    books.peak = books.total
    with running_eagerly(), books:
        kept = step()  # what it returns is alive as long as a caller would hold it
    del kept
    return books.peak if books.operations else None


def _packed_bytes(module: Any) -> int:
    """Give the bytes that no tensor shows; of what cannot be unpacked, nobody knows them."""
    try:
        return sum(nbytes for _, _, nbytes in packed_weights(module))
    except (RuntimeError, TypeError):
        return 0


class _LiveBytes(TorchDispatchMode):
    """Adds up the buffers that operators make, and takes off those that die."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = self.peak = self.operations = 0
        self._made: dict[int, int] = {}
        self._bonds: dict[int, Any] = {}  # weak references fire only while somebody holds them

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(unfolds(kind) for kind in types):
            return NotImplemented  # let the subclass unfold; its inner operators come by again
        if not _is_counted(func) and not any(each.is_nested for each in flat_tensors(args)):
            unfolded = decomposed(self, func, args, kwargs)
            if unfolded is not NotImplemented:
                return unfolded
        result = func(*args, **kwargs)
        self.operations += 1
        # No operator made what comes in and is not known: it was there before, as constants are.
        was_there = not _is_fresh(func)
        for tensor in flat_tensors((args, kwargs)):
            self.enter(tensor, was_there=was_there)
        for tensor in flat_tensors(result):
            self.enter(tensor)
        return result

    def enter(
        self, tensor: torch.Tensor, *, was_there: bool = False, is_input: bool = False
    ) -> None:
        """Count what a tensor holds, unless it is known."""
        for part in parts_of(tensor):
            storage = storage_of(part)
            if storage is None:
                continue
            key, nbytes = storage._cdata, storage.nbytes()
            if key in self._bonds:
                self._resize(key, nbytes)
                continue
            if is_input:  # it may be a slice of a whole data set; only the slice is used
                nbytes = min(nbytes, part.numel() * part.element_size())
            if was_there:
                self.peak += nbytes  # at every moment before, too
            else:
                self._made[key] = nbytes
            self._add(nbytes)
            self._bonds[key] = weakref.ref(storage, partial(self._forget, key, nbytes))

    def _add(self, nbytes: int) -> None:
        self.total += nbytes
        self.peak = max(self.peak, self.total)

    def _resize(self, key: int, nbytes: int) -> None:
        """Count a buffer that an operator made by the size that it has now."""
        before = self._made.get(key, nbytes)
        if before != nbytes:
            self._made[key] = nbytes
            self._add(nbytes - before)

    def _forget(self, key: int, nbytes: int, _: Any) -> None:
        del self._bonds[key]
        self.total -= self._made.pop(key, nbytes)


@lru_cache(maxsize=1024)
def _is_counted(func: Any) -> bool:
    """Tell whether the recorder knows an operator; of others it runs what they are made of."""
    return rule_of(func, operator_kind(func)) is not None


@lru_cache(maxsize=1024)
def _is_fresh(func: Any) -> bool:
    return operator_kind(func) in FRESH
