"""Which layer, and which phase of a training step, an operator of PyTorch belongs to."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch

__all__ = ["Places"]


@dataclass
class _Marks:
    """Autograd's counter of nodes whenever the layer of a thread changed, and the layer from then.

    `task` is the backward pass inside of which the latest mark was made; -1 outside of any.
    """

    nodes: list[int] = field(default_factory=list)
    paths: list[str | None] = field(default_factory=list)
    task: int = -1

    def path_of(self, node: int) -> str | None:
        index = bisect_right(self.nodes, node) - 1
        return self.paths[index] if index >= 0 else None


class Places:
    """Follows which layer is running. `outside` is the path of what runs in no layer.

    In a backward pass a node of autograd belongs to the layer in which it was made. Layers that run
    inside of a backward pass (checkpointing) speak for themselves.
    """

    def __init__(self, outside: str | None = None) -> None:
        self._outside = outside
        self._stack: list[tuple[str, bool]] = []  # path, and whether a backward pass called it
        self._is_updating = False
        self._thread = get_ident()
        self._marks: dict[int, _Marks] = {}  # every thread counts nodes by itself
        self._mark()

    def enter_layer(self, path: str) -> None:
        self._stack.append((path, _running_node() is not None))
        self._mark()

    def leave_layer(self, path: str, error: BaseException | None, output: Any) -> None:
        self._stack.pop()
        self._mark()

    def begin_update(self, path: str) -> None:
        self._is_updating = True

    def end_update(self, path: str, error: BaseException | None, output: Any) -> None:
        self._is_updating = False

    def now(self) -> tuple[str | None, str]:
        """Give the layer and the phase of an operator that runs at this moment."""
        node = _running_node()
        if node is not None:
            path, is_called_by_backward = self._stack[-1] if self._stack else ("", False)
            return (path if is_called_by_backward else self._maker_of(node)), "backward"
        if self._stack:
            return self._stack[-1][0], "forward"
        return (None, "update") if self._is_updating else (self._outside, "forward")

    def _mark(self) -> None:
        marks = self._marks.setdefault(get_ident(), _Marks())
        marks.nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        marks.paths.append(self._stack[-1][0] if self._stack else self._outside)
        marks.task = torch._C._current_graph_task_id()

    def _maker_of(self, node: Any) -> str | None:
        number = node._sequence_nr()  # gradient sinks have a huge one: they came after everything
        own = self._marks.get(get_ident())
        # Nodes that were made in a backward pass run in another one, which that one starts.
        if own is not None and own.task != torch._C._current_graph_task_id():
            return own.path_of(number)
        return self._marks[self._thread].path_of(number)


def _running_node() -> Any:
    """Give the node that a backward pass is working on, or None outside of any."""
    return torch._C._current_autograd_node()
