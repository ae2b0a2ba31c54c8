"""Channels that can only go together: sets that grow while a model is looked through."""

from __future__ import annotations

from collections.abc import Iterable

from tinytorch.perf.compression.channel_labels import Labels

__all__ = ["Units"]


class Units:
    """Roots that have to go together, as sets that grow."""

    def __init__(self, count: int) -> None:
        self._labels = Labels()
        self._roots = self._labels.fresh(count)

    def join_equal(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Join the roots that have an index in common."""
        known: dict[int, int] = {}
        for index, root in pairs:
            first = known.setdefault(index, root)
            self._labels.tie_together(self._roots[[first, root]])

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
            order.setdefault(each, len(order)) for each in self._labels.roots(self._roots).tolist()
        ]
