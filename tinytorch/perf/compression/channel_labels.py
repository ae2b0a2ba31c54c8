"""Labels: which indices of which axes stand for the same channel.

Every index of every axis of a weight begins with a label of its own. Operations that a model runs
tie labels together: what is added is the same channel, and so is an output of one layer and the
input of the next. In the end indices with the same label can only be removed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AxisLabels", "Labels"]

AxisLabels = npt.NDArray[np.int64] | None
"""A label for each index of an axis; None for an axis whose length has nothing to do with weights,
such as the batch, and which must stay as long as it is."""


class Labels:
    """Which labels are the same (a union-find), and which must stay, with the reason."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._reasons: dict[int, str] = {}

    def fresh(self, count: int) -> npt.NDArray[np.int64]:
        """Give labels that nothing else has."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return np.arange(first, first + count)

    def find(self, label: int) -> int:
        """Give the label that stands for all that are the same as this one."""
        parents, root = self._parents, label
        while parents[root] != root:
            root = parents[root]
        while parents[label] != root:  # the next search is short
            parents[label], label = root, parents[label]
        return root

    def roots(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.array([self.find(label) for label in labels.tolist()], np.int64)

    def tie(self, first: AxisLabels, second: AxisLabels, why_fixed: str) -> AxisLabels:
        """Make the labels of two axes the same, index by index, and give them.

        An axis without labels keeps its length, so the labels of the other one stay for the reason
        that is given.
        """
        if first is None or second is None:
            known = second if first is None else first
            self.freeze(known, why_fixed)
            return known
        if first is not second:
            for one, other in zip(first.tolist(), second.tolist(), strict=True):
                self._tie_two(one, other)
        return first

    def tie_together(self, labels: npt.NDArray[Any]) -> int:
        """Make all these labels the same, and give one of them."""
        chosen, *others = dict.fromkeys(labels.reshape(-1).tolist())
        for other in others:
            self._tie_two(chosen, other)
        return int(chosen)

    def freeze(self, labels: AxisLabels, reason: str) -> None:
        """Let channels stay, whatever happens."""
        if labels is not None:
            for root in {self.find(label) for label in labels.tolist()}:
                self._reasons.setdefault(root, reason)

    def freeze_all(self, axes: Sequence[AxisLabels], reason: str) -> None:
        for labels in axes:
            self.freeze(labels, reason)

    def reason(self, label: int) -> str:
        """Say why a channel must stay, or nothing."""
        return self._reasons.get(self.find(label), "")

    def _tie_two(self, one: int, other: int) -> None:
        one, other = self.find(one), self.find(other)
        if one == other:
            return
        self._parents[other] = one
        if other in self._reasons:
            self._reasons.setdefault(one, self._reasons.pop(other))
