"""What an adapter observes: operations, calls of layers, and memory. One recording, many views."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype and bytes of a tensor that an operation read or wrote.

    `nbytes` counts memory that is really there: an expanded tensor has less than its shape says.
    `parts` are the shapes inside of a ragged (nested) tensor, whose own shape is (). `stored` is
    the number of elements that a sparse tensor holds.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    is_view: bool = False
    parts: tuple[tuple[int, ...], ...] = ()
    stored: int | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        if self.parts:
            return sum(math.prod(part) for part in self.parts)
        return math.prod(self.shape)


Argument = TensorSpec | tuple[TensorSpec, ...] | None


@dataclass(frozen=True, slots=True)
class Call:
    """One executed operation, without its cost.

    `inputs` are the tensors in the order of the operation's signature: None where one is absent, a
    tuple where it takes several. `settings` are its other arguments by name. `changed` are the
    positions of inputs that it writes to in place; as an output, such a tensor is a view.
    """

    kind: str
    inputs: tuple[Argument, ...]
    outputs: tuple[TensorSpec, ...]
    settings: Mapping[str, Any]
    changed: tuple[int, ...] = ()

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors that come in, flat."""
        flat: list[TensorSpec] = []
        for item in self.inputs:
            if isinstance(item, TensorSpec):
                flat.append(item)
            elif item is not None:
                flat.extend(item)
        return tuple(flat)

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of the input at a position, which must be a tensor."""
        return self.tensor(position).shape

    def tensor(self, position: int) -> TensorSpec:
        """Return the input at a position, which must be a tensor."""
        found = self.inputs[position]
        assert isinstance(found, TensorSpec), f"input {position} of {self.kind} is {found!r}"
        return found


@dataclass(frozen=True, slots=True)
class Cost:
    """What an operation costs, by the table in :mod:`tinytorch.models.costs`.

    `macs` are the multiply-accumulates of contractions, dense: padding and masked positions count.
    `causal_macs` leaves out what a causal mask hides, where the operation says that it has one.
    `recomputed_macs` are products that a fused backward kernel repeats, or does for gradients that
    are not needed; they are not in `macs`.
    `other_flops` is elementwise, normalisation and reduction work.
    """

    family: str
    macs: int = 0
    causal_macs: int = 0
    recomputed_macs: int = 0
    other_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def flops(self) -> int:
        """Floating-point operations of contractions: two per multiply-accumulate."""
        return 2 * self.macs


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One executed operation. `cost` is None when the table has no formula for its kind.

    `path` is the layer that ran it: "" is the model itself, None is code outside of the model, such
    as a loss or an optimizer. `start` counts from the beginning of the recording, in seconds. The
    duration was taken in the recording pass, which is slower than the model on its own. `reads` has
    a number for each tensor that came in: operations of one kind that read the same numbers read
    the same values. It is empty where that is not known.
    """

    kind: str
    path: str | None
    phase: str
    inputs: tuple[Argument, ...]
    outputs: tuple[TensorSpec, ...]
    cost: Cost | None
    start: float
    duration: float
    arithmetic: str = ""
    reads: tuple[int, ...] = ()

    @property
    def dtype(self) -> str:
        """What it computes in: the stated arithmetic (tf32), or the first floating-point dtype."""
        if self.arithmetic:
            return self.arithmetic
        specs = (*Call(self.kind, self.inputs, self.outputs, {}).tensors, *self.outputs)
        names = [spec.dtype for spec in specs]
        floating = [name for name in names if "float" in name or "complex" in name]
        return (floating or names or ["none"])[0]

    @property
    def macs(self) -> int:
        return self.cost.macs if self.cost else 0

    @property
    def flops(self) -> int:
        return 2 * self.macs

    @property
    def all_flops(self) -> int:
        """Contractions and everything else that computes."""
        return self.flops + self.cost.other_flops if self.cost else 0

    @property
    def bytes_moved(self) -> int:
        return self.cost.bytes_read + self.cost.bytes_written if self.cost else 0


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer: when it began and ended, in seconds since the model was called."""

    path: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """A buffer that came to life during the recording, or was there before (`born` is 0.0).

    `died` is None when it outlived the recording. Times are those of the operations.
    """

    nbytes: int
    category: str
    path: str | None
    phase: str
    born: float
    died: float | None


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything that one recorded call did."""

    operations: tuple[OpRecord, ...]
    allocations: tuple[Allocation, ...]
    duration: float
    device_peak_bytes: int | None = None


# ---------------------------------------------------------------- who holds which bytes from when
# to when

RESIDENT = "resident"
"""The phase of what was there before anything ran."""


@dataclass
class _Entry:
    nbytes: int
    category: str | None
    path: str | None
    phase: str
    born: float
    died: float | None = None


class Ledger:
    """Tracks buffers while a model runs.

    A buffer is known by a key, which may be used again once the buffer is dead. What is there
    before the recording has its category from the start; the others get theirs at the end, when it
    is known which of them became gradients.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._values: dict[Hashable, int] = {}
        self._writes: Counter[int] = Counter()
        self._entries: list[_Entry] = []
        self._living: dict[Hashable, int] = {}

    def holds(self, key: Hashable) -> bool:
        return key in self._living

    def add_resident(self, key: Hashable, nbytes: int, category: str, path: str | None) -> None:
        """Enter a buffer that was there before anything ran."""
        if key not in self._living:
            self._enter(key, _Entry(nbytes, category, path, RESIDENT, 0.0))

    def add(self, key: Hashable, nbytes: int, path: str | None, phase: str) -> None:
        """Enter a buffer that has just been seen for the first time."""
        self._enter(key, _Entry(nbytes, None, path, phase, self._now()))

    def resize(self, key: Hashable, nbytes: int) -> None:
        """End the entry of a buffer whose size changed, and begin a new one."""
        entry = self._entries[self._living[key]]
        if entry.phase != RESIDENT and entry.nbytes != nbytes:
            self.remove(key)
            self.add(key, nbytes, entry.path, entry.phase)

    def value_number(self, key: Hashable, part: Hashable) -> int:
        """Return the number of the values in a part (offset, shape) of a live buffer.

        It is another one after a write in place, and for what lies in the same memory later. What
        is in no buffer has a new number each time.
        """
        index = self._living.get(key)
        what = object() if index is None else (index, self._writes[index], part)
        return self._values.setdefault(what, len(self._values))

    def write(self, key: Hashable) -> None:
        """Note that a buffer was written to in place."""
        if key in self._living:
            self._writes[self._living[key]] += 1

    def remove(self, key: Hashable) -> None:
        """End the entry of a buffer that was freed."""
        index = self._living.pop(key, None)
        if index is not None:
            self._entries[index].died = self._now()

    def name(self, key: Hashable, category: str) -> None:
        """Set the category of a live buffer, unless it has one."""
        index = self._living.get(key)
        if index is not None and self._entries[index].category is None:
            self._entries[index].category = category

    def allocations(self) -> tuple[Allocation, ...]:
        """Return what was seen, in the order of birth."""
        return tuple(
            Allocation(
                nbytes=entry.nbytes,
                category=entry.category or _unnamed(entry.phase),
                path=entry.path,
                phase=entry.phase,
                born=entry.born,
                died=entry.died,
            )
            for entry in self._entries
        )

    def _enter(self, key: Hashable, entry: _Entry) -> None:
        self._living[key] = len(self._entries)
        self._entries.append(entry)


def _unnamed(phase: str) -> str:
    return "activations" if phase == "forward" else "temporaries"
