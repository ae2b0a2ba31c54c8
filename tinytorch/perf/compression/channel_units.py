"""Channels that can only go together: sets that grow while a model is looked through."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Units"]


class Units:
    """Roots that have to go together, as sets that grow."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def _find(self, root: int) -> int:
        while self._parents[root] != root:
            self._parents[root] = root = self._parents[self._parents[root]]
        return root

    def _join(self, one: int, other: int) -> None:
        first, second = sorted((self._find(one), self._find(other)))
        self._parents[second] = first

    def join_equal(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Join the roots that have an index in common."""
        known: dict[int, int] = {}
        for index, root in pairs:
            self._join(known.setdefault(index, root), root)

    def join_blocks(
        self, pairs: Iterable[tuple[int, int]], block: tuple[int, bool]
    ) -> list[tuple[int, int]]:
        """Join what has the same position in each group of a convolution, which stay alike.

        Its inputs are held once for all groups: the positions take the place of the indices.
        """
        size, is_input = block
        pairs = list(pairs)
        self.join_equal((index % size, root) for index, root in pairs)
        return [(index % size, root) for index, root in pairs] if is_input else pairs

    def numbers(self) -> list[int]:
        """Give for each root the number of its set, in order."""
        order: dict[int, int] = {}
        return [
            order.setdefault(self._find(root), len(order)) for root in range(len(self._parents))
        ]
