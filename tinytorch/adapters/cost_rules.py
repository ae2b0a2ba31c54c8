"""The kinds of rules in the cost table: how operations and bytes are counted for each.

Bytes are those of the tensors that an operation reads and writes, each once: what an ideal cache
would leave to memory. Unless a rule says otherwise, all that goes in is read, and all that comes
out or is changed in place is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tinytorch.adapters.contractions import visible_to_causal
from tinytorch.adapters.records import Argument, Call, Cost, TensorSpec

__all__ = [
    "COPY",
    "CREATION",
    "DRAWN",
    "GATHER",
    "MOVEMENT",
    "PACKED_GATHER",
    "PICKED_LOSS",
    "PICKED_LOSS_BACKWARD",
    "POINTWISE",
    "POOLING",
    "RANDOM",
    "UNPOOLING",
    "UNPOOLING_BY_SHAPE",
    "VIEW",
    "Count",
    "Rule",
    "contraction",
    "normalisation",
    "on_list",
    "placed",
    "pointwise",
    "reduction",
    "twice",
    "update",
]

Count = Callable[[Call], int]


@dataclass(frozen=True)
class Rule:
    """How one kind of operation is counted.

    `macs`, `recomputed` and `other` give numbers of operations; `read` and `written` give bytes,
    where these are not simply those of all tensors.
    """

    family: str
    macs: Count | None = None
    other: Count | None = None
    recomputed: Count | None = None
    read: Count | None = None
    written: Count | None = None
    is_free: bool = False

    def cost_of(self, call: Call) -> Cost:
        """Count one call."""
        if self.is_free or _only_gives_views(call):
            return Cost("view")
        macs = self.macs(call) if self.macs else 0
        return Cost(
            family=self.family,
            macs=macs,
            causal_macs=visible_to_causal(call, macs),
            recomputed_macs=self.recomputed(call) if self.recomputed else 0,
            other_flops=self.other(call) if self.other else 0,
            bytes_read=(self.read or all_in)(call),
            bytes_written=(self.written or all_out)(call),
        )


def _only_gives_views(call: Call) -> bool:
    is_view = bool(call.outputs) and all(spec.is_view for spec in call.outputs)
    return is_view and not call.changed


# ---------------------------------------------------------------- bytes


def _nbytes(argument: Argument) -> int:
    if isinstance(argument, TensorSpec):
        return argument.nbytes
    return sum(spec.nbytes for spec in argument or ())


def all_in(call: Call) -> int:
    return sum(_nbytes(argument) for argument in call.inputs)


def all_out(call: Call) -> int:
    """What is new, and what was changed in place."""
    new = sum(spec.nbytes for spec in call.outputs if not spec.is_view)
    return new + sum(_nbytes(call.inputs[position]) for position in call.changed)


def all_but(position: int) -> Count:
    """Leave out an input that only lends its shape, or its memory."""
    return lambda call: all_in(call) - sum(map(_nbytes, call.inputs[position : position + 1]))


def unchanged(call: Call) -> int:
    """What a random number depends on; a probability may be a number instead of a tensor."""
    if "p" in call.settings:
        return 0
    return sum(
        _nbytes(argument)
        for position, argument in enumerate(call.inputs)
        if position not in call.changed
    )


def with_index_arrays(count: Count) -> Count:
    """Add the arrays with which a kernel of our own picks: they are in its settings."""

    def counted(call: Call) -> int:
        index = call.settings.get("index")
        parts = index if isinstance(index, tuple) else (index,)
        arrays = [np.asarray(part) for part in parts if isinstance(part, (np.ndarray, list))]
        return count(call) + sum(array.nbytes for array in arrays)

    return counted


def _gathered(call: Call) -> int:
    """As much as is given, but no table twice; and the indices."""
    return min(call.tensor(0).nbytes, all_out(call)) + all_but(0)(call)


def _gathered_bytes(call: Call) -> int:
    """A byte for each number that is given, but no table twice; scales of the rows, and the ids."""
    ids, table, scales = (call.tensor(position) for position in range(3))
    return min(call.outputs[0].size, table.nbytes) + _of(scales, ids.size) + ids.nbytes


def _picked(call: Call) -> int:
    """One number of each row, and the rest: (rows, targets, ...)."""
    return _of(call.tensor(0), call.tensor(1).size) + all_but(0)(call)


def _of(spec: TensorSpec, count: int) -> int:
    """Give the bytes of so many elements of a tensor, all of it at most."""
    return spec.nbytes * min(count, spec.size) // max(spec.size, 1)


def _all_but_gradient(call: Call) -> int:
    """An optimizer step takes (parameter, gradient, *state) and changes all but the gradient.

    PyTorch's fused steps take a scale of the gradient as their last tensor but one. If there is
    one, they write the gradient back without it.
    """
    if call.outputs:
        return all_out(call)
    is_scaled = bool(call.changed) and isinstance(call.inputs[-2], TensorSpec)
    changed = call.changed or range(len(call.inputs))
    return sum(_nbytes(call.inputs[each]) for each in changed if each != 1 or is_scaled)


# ---------------------------------------------------------------- operations


def _largest(call: Call) -> int:
    # What has no output changes its inputs.
    return max((spec.size for spec in call.outputs or call.tensors), default=0)


def _first_size(call: Call) -> int:
    """Optimizers and operators on lists of tensors work on the first argument."""
    first = call.inputs[0]
    if isinstance(first, TensorSpec):
        return first.size
    return sum(spec.size for spec in first or ())


def _window(call: Call) -> int:
    """Pooling: each output element looks at a whole window."""
    sides = call.settings.get("kernel") or call.settings.get("kernel_size") or (1,)
    rank = int(call.kind.partition("_pool")[2][0])  # max_pool2d: one side may stand for both
    return call.outputs[0].size * math.prod(sides if len(sides) == rank else sides * rank)


def twice(count: Count) -> Count:
    """Give the gradient of the input and that of the weight: each as much as forward."""
    return lambda call: 2 * count(call)


# ---------------------------------------------------------------- the kinds of rules


def contraction(macs: Count, recomputed: Count | None = None) -> Rule:
    """Sums of products."""
    return Rule("contraction", macs=macs, recomputed=recomputed)


def pointwise(per_element: int = 1) -> Rule:
    """So many operations for each element of the output."""
    return Rule("elementwise", other=lambda call: per_element * _largest(call))


def reduction(per_element: int = 1) -> Rule:
    """So many operations for each element of the input."""
    return Rule("reduction", other=lambda call: per_element * call.tensor(0).size)


def normalisation(per_element: int) -> Rule:
    """So many operations for each element of the input."""
    return Rule("normalisation", other=lambda call: per_element * call.tensor(0).size)


def on_list(per_element: int = 1) -> Rule:
    """So many operations for each element of each tensor of a list."""
    return Rule("update", other=lambda call: per_element * _first_size(call))


def update(per_element: int) -> Rule:
    """An optimizer step: so many operations for each parameter."""
    return Rule(
        "update", other=lambda call: per_element * _first_size(call), written=_all_but_gradient
    )


def placed(*, adds: bool = False) -> Rule:
    """(target, indices, source): in place only what is put there is written, else all is copied.

    What `adds` to the target also reads it where it is written.
    """

    def written(call: Call) -> int:
        return _of(call.tensor(0), _placed_count(call)) if call.changed else all_out(call)

    def read(call: Call) -> int:
        if not call.changed:
            return all_in(call)
        source = sum(_of(spec, _placed_count(call)) for spec in _source(call))
        joins = adds or call.settings.get("accumulate") or call.settings.get("reduce")
        return _nbytes(call.inputs[1]) + source + (written(call) if joins else 0)

    return Rule("movement", read=read, written=written)


def _source(call: Call) -> tuple[TensorSpec, ...]:
    """What is put somewhere; nothing where it is a number."""
    return (call.tensor(2),) if len(call.inputs) > 2 else ()


def _placed_count(call: Call) -> int:
    """Count the elements that indices point at.

    ``index_put`` takes a tuple of indices, whose common shape replaces the axes that they stand
    for. How much a mask picks is not known: as many as there are values, or with one value for all
    the whole tensor, every element of which is looked at.
    """
    target, indices = call.tensor(0), call.inputs[1]
    values = sum(spec.size for spec in _source(call))
    if isinstance(indices, TensorSpec):
        # scatter has an index for each element, index_add and index_copy have one for each row
        return indices.size if "scatter" in call.kind else values
    assert indices is not None, f"{call.kind} has no indices"
    if any(index.dtype in ("bool", "uint8") for index in indices):
        return values if values > 1 else target.size
    picked = math.prod(np.broadcast_shapes(*(index.shape for index in indices)))
    axes = call.settings.get("indices", range(len(indices)))
    replaced = math.prod(target.shape[axis] for axis in axes)
    return picked * target.size // max(replaced, 1)


VIEW = Rule("view", is_free=True)
POINTWISE = pointwise()
MOVEMENT = Rule("movement", read=with_index_arrays(all_in))
COPY = Rule("movement", read=all_but(0))
"""(target, source): the target is not read."""
GATHER = Rule("movement", read=with_index_arrays(_gathered))
"""(table, indices): not the whole table is read."""
PACKED_GATHER = Rule("movement", other=_largest, read=_gathered_bytes)
"""(ids, table, scales): rows of a table of bytes, each times its scale."""
CREATION = Rule("creation", read=all_but(0))
"""An example or a target, if there is one, is not read; the value may be a tensor."""
RANDOM = Rule("random", other=_largest, read=lambda call: 0)
DRAWN = Rule("random", other=_largest, read=unchanged)
"""Random numbers that may depend on tensors, such as means."""
POOLING = Rule("pooling", other=_window)
UNPOOLING = Rule("pooling", other=_largest)
UNPOOLING_BY_SHAPE = Rule("pooling", other=_largest, read=all_but(1))
"""(gradient, input, ...): of the input only the shape is needed."""
PICKED_LOSS = Rule("reduction", other=lambda call: call.tensor(1).size, read=_picked)
"""(rows, targets, ...): one number of each row counts."""
PICKED_LOSS_BACKWARD = Rule("reduction", other=lambda call: call.tensor(2).size, read=all_but(1))
"""(gradient, rows, targets, ...): of the rows only the shape is needed."""
