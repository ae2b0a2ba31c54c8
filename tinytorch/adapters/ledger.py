"""Who holds which bytes from when to when."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tinytorch.adapters.records import Allocation

__all__ = ["Ledger"]

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
    """Keep books on buffers while a model runs.

    A buffer is known by a key, which may be used again once the buffer is dead. What is there
    before the recording has its category from the start; the others get theirs at the end, when it
    is known which of them became gradients.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
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
        """Close the books of a buffer that has got another size, and open new ones."""
        entry = self._entries[self._living[key]]
        if entry.phase != RESIDENT and entry.nbytes != nbytes:
            self.remove(key)
            self.add(key, nbytes, entry.path, entry.phase)

    def remove(self, key: Hashable) -> None:
        """Close the books of a buffer that is freed."""
        index = self._living.pop(key, None)
        if index is not None:
            self._entries[index].died = self._now()

    def name(self, key: Hashable, category: str) -> None:
        """Say what a buffer that is still alive is for, unless it is known already."""
        index = self._living.get(key)
        if index is not None and self._entries[index].category is None:
            self._entries[index].category = category

    def allocations(self) -> tuple[Allocation, ...]:
        """Give what was seen, in the order of birth."""
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
