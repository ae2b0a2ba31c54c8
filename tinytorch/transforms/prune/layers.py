"""The layers of a TinyTorch model whose weights can become zero, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.kernels import Array
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import TiedHead
from tinytorch.errors import ModelError, SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import named_tensors, own_tensors
from tinytorch.transforms.plan import Plan, Skipped, Step
from tinytorch.transforms.support.observing import idle_patterns, why_kept

__all__ = [
    "KINDS",
    "NAME",
    "ZERO_ALREADY",
    "LayerKind",
    "Prunable",
    "ShareOut",
    "check_rankable",
    "find_prunables",
    "kind_of",
    "make_plan",
    "ranks_within_outputs",
    "relative_scores",
    "share_out",
    "smallest",
    "weight_scores",
]


# ---------------------------------------------------------------- how much each weight matters,
# and which of them matter least. Arrays only
#
# A score is not negative. A weight that is zero already has the score :data:`ZERO_ALREADY`, below
# all others, so that it counts among those that become zero before any other is taken.

ZERO_ALREADY = -1.0
Mask = npt.NDArray[np.bool_]


def weight_scores(weight: Array, input_norms: Array | None = None) -> Array:
    """Give the magnitude of each weight, times the norm of its input if that is given.

    |w| ||x|| is what the output of a layer would change by on the calibration data if this weight
    alone were gone (Sun et al., 2023, "Wanda"). `input_norms` fits the weight by broadcasting.
    """
    if not np.isfinite(weight).all():
        raise SettingError("its weight holds NaN or infinity, which cannot be ranked")
    scores: Array = np.abs(weight)
    if input_norms is not None:
        scores = scores.astype(np.float64) * input_norms  # no product of small floats becomes 0
    return np.where(weight == 0, scores.dtype.type(ZERO_ALREADY), scores)


def relative_scores(scores: Array) -> Array:
    """Divide by the norm of all scores of the layer, so that those of several layers compare.

    The square of the result is the share of one weight in what the layer gives, with inputs taken
    to be independent. Multiplying a layer by a number changes none of them.
    """
    alive = scores >= 0
    norm = float(np.linalg.norm(scores[alive].astype(np.float64)))
    if norm == 0:
        return scores
    return np.where(alive, scores / norm, ZERO_ALREADY)


def ranks_within_outputs(scores: Array, output_axis: int) -> Array:
    """Replace each score by its rank among the weights of the same output.

    The smallest of these are as many in each output, up to one.
    """
    rows = np.moveaxis(scores, output_axis, 0)
    flat = rows.reshape(len(rows), -1)
    order = np.argsort(flat, axis=1, kind="stable")
    ranks = np.empty(flat.shape, np.float64)
    np.put_along_axis(ranks, order, np.arange(flat.shape[1], dtype=np.float64)[None], axis=1)
    ranks[flat < 0] = ZERO_ALREADY
    return np.moveaxis(ranks.reshape(rows.shape), 0, output_axis)


def smallest(scores: Array, count: int) -> Mask:
    """Mark exactly `count` of the smallest scores; of equal ones, those that come first."""
    flat = scores.reshape(-1)
    chosen = np.zeros(flat.shape, np.bool_)
    if count > 0:
        limit = np.partition(flat, count - 1)[count - 1]
        chosen[flat < limit] = True
        equal = np.flatnonzero(flat == limit)
        chosen[equal[: count - int(chosen.sum())]] = True
    return chosen.reshape(scores.shape)


def share_out(scores: Sequence[Array], count: int) -> list[int]:
    """Tell how many of the `count` smallest scores of several layers lie in each.

    The largest of each layer stays, because a layer without weights cuts a model in two. Of equal
    scores those of the first layers are taken. So :func:`smallest` of each layer, with its number,
    gives the smallest of all.
    """
    flat = [_without_largest(each) for each in scores]
    together = np.concatenate(flat) if flat else np.empty(0)
    if count > len(together):
        raise SettingError(f"{count:,} scores are asked for, there are {len(together):,}")
    if count == 0:
        return [0] * len(flat)
    limit = np.partition(together, count - 1)[count - 1]
    shares = [int((each < limit).sum()) for each in flat]
    left = count - sum(shares)
    for index, each in enumerate(flat):
        equal = min(left, int((each == limit).sum()))
        shares[index] += equal
        left -= equal
    return shares


def _without_largest(scores: Array) -> Array:
    """Give the scores in a row without the last one of the largest; all, if all weights are 0."""
    flat = scores.reshape(-1)
    if not flat.size:
        return flat
    last = flat.size - 1 - int(flat[::-1].argmax())
    return flat if flat[last] < 0 else np.delete(flat, last)


# ---------------------------------------------------------------- from weights that can be pruned
# to a plan, for models of any framework

NAME = "Prune"
NO_SHRINKAGE = (
    "a zero takes as many bytes as any other number; SparseLayers, or the file that "
    "save_compressed() writes, holds fewer"
)
NO_SPEEDUP = (
    "dense kernels multiply zeros as fast as other numbers; SparseLayers leaves them out where "
    "that is measured to be faster"
)
NEARLY_ALL = 0.99
"""A layer that loses more than this share is worth a word."""


@dataclass
class Prunable:
    """One weight, and the layers that use it, on the way to a step or to a reason."""

    name: str
    """Of the parameter, such as ``layers.0.weight``."""
    weight: Any
    size: int
    zeros: int
    """How many are zero already."""
    shape: tuple[int, ...]
    reasons: dict[str, str]
    """The layers by their paths, each with the reason why it is left alone, if so."""
    input_norms: tuple[float, ...] | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self.reasons)

    @property
    def is_left(self) -> bool:
        return any(self.reasons.values())

    def leave(self, reason: str) -> None:
        """Leave all of its layers alone; those with a reason of their own keep it."""
        kept = next((path for path, each in self.reasons.items() if each), None)
        shared = reason if kept is None else f"it shares its weight with {kept!r}, which stays"
        self.reasons = {path: each or shared for path, each in self.reasons.items()}

    @property
    def most(self) -> int:
        """How many may be zero: one weight stays, so that the layer does not cut the model."""
        return self.size if self.zeros == self.size else self.size - 1

    @property
    def not_finite(self) -> str:
        """What to say if the weight holds NaN or infinity."""
        path = self.layers[0]
        return (
            f"the weight of layer {path!r} holds NaN or infinity, which cannot be ranked; mend it, "
            f"or leave it alone with keep=({path!r},)"
        )

    @property
    def share(self) -> str:
        return f"{self.zeros / self.size:.1%}"


ShareOut = Callable[[Sequence[Prunable], int], Sequence[int]]
"""Tells how many of the least important weights lie in each, if so many are taken in all."""


def make_plan(
    settings: Mapping[str, Any],
    prunables: Sequence[Prunable],
    others: Iterable[Skipped],
    share_out: ShareOut,
) -> Plan:
    """Decide how many zeros each weight gets.

    `settings` are those of the transform; `others` are the layers that cannot be pruned.
    """
    chosen = [each for each in prunables if not each.is_left]
    counts, notes = _zeros_after(chosen, settings, share_out)
    steps: list[Step] = []
    skipped = list(others)
    for each in prunables:
        if each.is_left:
            each.leave("")
            skipped += [Skipped(path, reason) for path, reason in each.reasons.items()]
        elif counts[each.name] > each.zeros:
            steps.append(_step(each, counts[each.name]))
        else:
            reason = _why_unchanged(each, counts[each.name], settings["scope"])
            skipped += [Skipped(path, reason) for path in each.layers]
    notes += [_note(each, counts[each.name]) for each in chosen if _loses_nearly_all(each, counts)]
    paths = [path for each in prunables for path in each.layers]
    notes += idle_patterns(settings["keep"], paths, change="pruned")
    return Plan(
        NAME,
        settings,
        tuple(steps),
        tuple(skipped),
        not_predicted={"speedup": NO_SPEEDUP, "shrinkage": NO_SHRINKAGE},
        notes=tuple(notes),
    )


def _zeros_after(
    chosen: Sequence[Prunable], settings: Mapping[str, Any], share_out: ShareOut
) -> tuple[dict[str, int], list[str]]:
    """Give the zeros of each weight by its name, and what is worth saying about them all."""
    sparsity = settings["sparsity"]
    before, size = sum(each.zeros for each in chosen), sum(each.size for each in chosen)
    if not size:
        return {}, ["the model has no weight that can be pruned"]
    if settings["scope"] == "layer":
        wanted = {each.name: round(sparsity * each.size) for each in chosen}
        counts = {each.name: min(wanted[each.name], each.most) for each in chosen}
        is_cut = wanted != counts
        counts = {each.name: max(counts[each.name], each.zeros) for each in chosen}
    else:
        count = min(round(sparsity * size), sum(each.most for each in chosen))
        is_cut = count < round(sparsity * size)
        if count <= before:
            counts = {each.name: each.zeros for each in chosen}
        else:
            shares = share_out(chosen, count)
            counts = {each.name: share for each, share in zip(chosen, shares, strict=True)}
    after = sum(counts.values())
    notes = []
    if after > before:
        notes.append(f"{after:,} of {size:,} weights are zero afterwards ({after / size:.1%})")
    else:
        notes.append(f"{before / size:.1%} of the {size:,} weights are zero already")
    if is_cut:
        notes.append(
            f"a layer keeps at least one weight, so the sparsity stays below {sparsity:g}: a "
            "layer without weights would cut the model in two"
        )
    return counts, notes


def _step(each: Prunable, zeros: int) -> Step:
    what = f"{zeros:,} of {each.size:,} weights become zero"
    why = f"the least important of a weight {each.shape}"
    if each.zeros:
        what += f", {each.zeros:,} of them are already"
    if len(each.layers) > 1:
        why += f", which {' and '.join(each.layers)} share"
    settings: dict[str, Any] = {"weight": each.name, "zeros": zeros}
    if len(each.layers) > 1:
        settings["layers"] = each.layers
    if each.input_norms is not None:
        settings["input_norms"] = each.input_norms
    return Step(each.layers[0], what, why, settings)


def _why_unchanged(each: Prunable, zeros: int, scope: str) -> str:
    if zeros:
        return f"{each.share} of its weights are zero already"
    if scope == "layer":
        return f"this share of {each.size:,} weights is less than one"
    return "all of its weights are more important than those that become zero"


def _loses_nearly_all(each: Prunable, counts: Mapping[str, int]) -> bool:
    zeros = counts[each.name]
    return zeros > each.zeros and zeros > NEARLY_ALL * each.size


def _note(each: Prunable, zeros: int) -> str:
    left = each.size - zeros
    return f"{each.layers[0]!r} keeps only {left:,} of {each.size:,} weights; keep= leaves it alone"


# ---------------------------------------------------------------- the layers of a TinyTorch model
# whose weights can become zero, one by one

TABLE = "embeddings are left alone unless prune_embeddings=True"


@dataclass(frozen=True)
class LayerKind:
    """How the layers of one class hold their weight and meet it with their inputs.

    `spread(layer, norms)` gives one norm per input in a shape that fits the weight; None for a
    table, where rows are looked up. `input_axis` is the axis of the channels of an input.
    """

    weight: Callable[[Any], Tensor]
    output_axis: int = 0
    input_axis: int = -1
    spread: Callable[[Any, Array], Array] | None = None
    is_table: bool = False
    computes_with: tuple[str, ...] = ("forward",)
    """The methods that a subclass must inherit to be the same layer."""


def _own_weight(layer: Any) -> Tensor:
    return layer.weight


def _spread_over_kernels(layer: Any, norms: Array) -> Array:
    """Give each output channel the norms of the input channels of its group."""
    groups = norms.reshape(layer.groups, -1)  # (groups, in / groups)
    rows = np.repeat(groups, layer.weight.shape[0] // layer.groups, axis=0)
    return rows[:, :, None, None]  # (out, in / groups, 1, 1)


KINDS: dict[type[Module], LayerKind] = {
    Linear: LayerKind(_own_weight, output_axis=1, spread=lambda _, norms: norms[:, None]),
    Conv2d: LayerKind(
        _own_weight,
        input_axis=-3,
        spread=_spread_over_kernels,
        computes_with=("forward", "_convolve"),
    ),
    Embedding: LayerKind(_own_weight, is_table=True),
    PositionalEmbedding: LayerKind(_own_weight, is_table=True),
    TiedHead: LayerKind(
        lambda head: head.embedding.weight, spread=lambda _, norms: norms[None], is_table=True
    ),
}
"""Layers by their class; of its subclasses those that inherit how they compute."""


def kind_of(layer: Any) -> LayerKind | None:
    """Give the kind of a layer; None for those that hold no weight, or that nobody knows."""
    for base, kind in KINDS.items():
        if isinstance(layer, base) and all(
            getattr(type(layer), name) is getattr(base, name) for name in kind.computes_with
        ):
            return kind
    return None


def find_prunables(
    model: Any, *, keep: Iterable[str] = (), embeddings: bool = False
) -> tuple[list[Prunable], list[Skipped]]:
    """Give the weights that can be pruned, each once, and the layers that hold others.

    A weight is left alone where one of the layers that hold it is.
    """
    modules: Mapping[str, Any] = adapter_for(model).modules(model)
    names = {id(tensor): name for name, tensor in named_tensors(model).items()}
    found: dict[int, Prunable] = {}
    skipped: list[Skipped] = []
    for path, layer in modules.items():
        kind = kind_of(layer)
        if kind is None:
            reason = _why_unknown(layer)
            skipped += [Skipped(path, reason)] if reason else []
            continue
        weight = kind.weight(layer)
        if id(weight) not in names:
            raise ModelError(f"layer {path!r} computes with a weight that the model does not hold")
        # two tensors on one array are one weight
        prunable = found.setdefault(id(weight.data), _prunable(names[id(weight)], weight))
        reason = why_kept(path, keep) or (TABLE if kind.is_table and not embeddings else "")
        if "forward" in vars(layer):
            reason = reason or "its forward was replaced on this object by another function"
        prunable.reasons[path] = reason or _why_not(weight.data)
    for path, layer in modules.items():
        if kind_of(layer) is None:
            for _, tensor in own_tensors(layer):
                if id(tensor.data) in found:
                    found[id(tensor.data)].leave(
                        f"it shares its weight with {path!r}, which is not pruned"
                    )
    return list(found.values()), skipped


def _prunable(name: str, weight: Tensor) -> Prunable:
    zeros = weight.data.size - int(np.count_nonzero(weight.data))
    return Prunable(name, weight, weight.data.size, zeros, weight.shape, {})


def check_rankable(prunables: Iterable[Prunable]) -> None:
    """Raise if a weight that is to be pruned holds what is neither small nor large."""
    for each in prunables:
        if not each.is_left and not np.isfinite(each.weight.data).all():
            raise SettingError(each.not_finite)


def _why_not(weight: Array) -> str:
    if weight.dtype.kind != "f":
        return f"its weight holds {weight.dtype}, no floats"
    return "" if weight.size else "its weight is empty"


def _why_unknown(layer: Any) -> str:
    """Say why a layer that is in no table is left alone; nothing if it holds no numbers itself."""
    own = [tensor for _, tensor in own_tensors(layer)]
    if not own:
        return ""
    name, count = type(layer).__name__, sum(each.data.size for each in own)
    packed = [each.data.dtype for each in own if each.data.dtype.kind != "f" and each.data.ndim]
    if packed:
        return (
            f"{name} holds its weight in another form ({packed[0]}); prune the float model that "
            "it was made from"
        )
    base = next((known for known in KINDS if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    return f"{name} is not a layer that is pruned; its {count:,} numbers stay"
