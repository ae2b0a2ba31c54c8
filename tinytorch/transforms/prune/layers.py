"""The weights of a model that can become zero one by one, and how much each of them matters."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import Conv2d
from tinytorch.core.transformers import TiedHead
from tinytorch.errors import ModelError, SettingError
from tinytorch.models.adapter import Adapter, adapter_for, namespace_of
from tinytorch.transforms.plan import Plan, Skipped, Step
from tinytorch.transforms.support.observing import idle_patterns, why_kept

# ---------------------------------------------------------------- how much each weight matters,
# and which of them matter least: for arrays of NumPy and tensors of PyTorch, where they are
#
# A score is not negative. A weight that is zero already has the score :data:`ZERO_ALREADY`, below
# all others, so that it counts among those that become zero before any other is taken.

ZERO_ALREADY = -1.0


def weight_scores(weight: Any, input_norms: Any = None) -> Any:
    """Return the magnitude of each weight, times the norm of its input if that is given.

    |w| ||x|| is what the output of a layer would change by on the calibration data if this weight
    alone were gone (Sun et al., 2023, "Wanda"). `input_norms` fits the weight by broadcasting.
    """
    xp = namespace_of(weight)
    if not xp.isfinite(weight).all():
        raise SettingError("its weight holds NaN or infinity, which cannot be ranked")
    scores = _at_least_float32(abs(weight))
    if input_norms is not None:
        # no product of small floats becomes 0
        scores = xp.asarray(scores, dtype=xp.float64) * input_norms
    return xp.where(weight == 0, ZERO_ALREADY, scores)


def relative_scores(scores: Any) -> Any:
    """Divide by the norm of all scores of the layer, so that those of several layers compare.

    The square of the result is the share of one weight in what the layer gives, with inputs taken
    to be independent. Multiplying a layer by a number changes none of them.
    """
    xp = namespace_of(scores)
    alive = scores >= 0
    norm = float(xp.linalg.norm(xp.asarray(scores[alive], dtype=xp.float64)))
    return xp.where(alive, scores / norm, ZERO_ALREADY) if norm else scores


def ranks_within_outputs(scores: Any, output_axis: int) -> Any:
    """Replace each score by its rank among the weights of the same output.

    The smallest of these are as many in each output, up to one.
    """
    xp = namespace_of(scores)
    rows = xp.moveaxis(scores, output_axis, 0)
    flat = rows.reshape(len(rows), -1)
    order = xp.argsort(flat, axis=1, stable=True)
    ranks = xp.asarray(xp.argsort(order, axis=1), dtype=scores.dtype)
    ranks[flat < 0] = ZERO_ALREADY
    return xp.moveaxis(ranks.reshape(rows.shape), 0, output_axis)


def smallest(scores: Any, count: int) -> Any:
    """Mark exactly `count` of the smallest scores; of equal ones, those that come first."""
    xp = namespace_of(scores)
    bits = _ordered_bits(scores, is_wide=scores.dtype == xp.float64)
    limit = _limit(lambda each: int((bits < each).sum()), count, bits.itemsize)
    chosen = bits < limit
    missing = count - int(chosen.sum())
    if missing:
        chosen[xp.argwhere(bits == limit).reshape(-1)[:missing]] = True
    return chosen.reshape(scores.shape)


def share_out(scores: Sequence[Any], count: int) -> list[int]:
    """Return how many of the `count` smallest scores of several layers lie in each.

    The largest of each layer stays, because a layer without weights cuts a model in two. Of equal
    scores those of the first layers are taken. So :func:`smallest` of each layer, with its number,
    gives the smallest of all. The scores need not lie on one device.
    """
    is_wide = any(each.dtype == namespace_of(each).float64 for each in scores)
    bits = [_ordered_bits(each, is_wide=is_wide) for each in scores]
    most = [len(each) - 1 if bool((each >= 0).any()) else len(each) for each in bits]
    if count > sum(most):
        raise SettingError(f"{count:,} scores are asked for, there are {sum(most):,}")

    def below(limit: int) -> list[int]:
        """Count what lies below a limit, but for the one that stays."""
        counts = (int((each < limit).sum()) for each in bits)
        return [min(found, bound) for found, bound in zip(counts, most, strict=True)]

    limit = _limit(lambda each: sum(below(each)), count, 8 if is_wide else 4)
    shares = below(limit)
    left = count - sum(shares)
    for index, bound in enumerate(most):
        equal = min(left, bound - shares[index], int((bits[index] == limit).sum()))
        shares[index] += equal
        left -= equal
    return shares


def _at_least_float32(array: Any) -> Any:
    xp = namespace_of(array)
    return xp.asarray(array, dtype=xp.float64 if array.dtype == xp.float64 else xp.float32)


def _ordered_bits(scores: Any, *, is_wide: bool) -> Any:
    """Return whole numbers in the order of the scores: those with the same bits.

    That holds for floats that are not negative, and the one negative score lies below them in both.
    """
    xp = namespace_of(scores)
    floats, integers = (xp.float64, xp.int64) if is_wide else (xp.float32, xp.int32)
    return xp.asarray(scores, dtype=floats).reshape(-1).view(integers)


def _limit(below: Callable[[int], int], count: int, itemsize: int) -> int:
    """Find the largest limit with not more than `count` numbers below it, bit by bit.

    That is one comparison of all numbers for each bit, many times faster than sorting on a GPU.
    """
    high = 2 ** (8 * itemsize - 1) - 1
    low = -high - 1
    while low < high:
        middle = low + (high - low + 1) // 2
        low, high = (middle, high) if below(middle) <= count else (low, middle - 1)
    return low


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
        """Skip all of its layers; those that have a reason keep it."""
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
            f"the weight of layer {path!r} holds NaN or infinity, which cannot be ranked; fix it, "
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
    """Return the zeros of each weight by its name, and notes."""
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


# ---------------------------------------------------------------- the layers whose weights can
# become zero, one by one

TABLE = "embeddings are left alone unless prune_embeddings=True"
REPLACED = "its forward was replaced on this object by another function"


@dataclass(frozen=True)
class LayerKind:
    """How the layers of one class hold their weight and meet it with their inputs.

    `weight(layer)` is None where the weight is computed anew before each call. `spread(layer,
    norms)` gives one norm per input in a shape that fits the weight; None for a table, where rows
    are looked up. `input_axis` is the axis of the channels of an input.
    """

    weight: Callable[[Any], Any] = attrgetter("weight")
    output_axis: int = 0
    input_axis: int = -1
    spread: Callable[[Any, Any], Any] | None = None
    is_table: bool = False
    computes_with: tuple[str, ...] = ("forward",)
    """The methods that a subclass must inherit to be the same layer."""


def spread_over_kernels(layer: Any, norms: Any) -> Any:
    """Return for each output channel the norms of the input channels of its group."""
    rows = norms.reshape(layer.groups, -1)  # (groups, in / groups)
    outputs = layer.weight.shape[0]
    group_of = [output * layer.groups // outputs for output in range(outputs)]
    rows = rows[group_of]
    return rows.reshape(*rows.shape, *(1 for _ in layer.kernel_size))


KINDS: dict[type, LayerKind] = {
    Linear: LayerKind(output_axis=1, spread=lambda _, norms: norms[:, None]),
    Conv2d: LayerKind(
        input_axis=-3, spread=spread_over_kernels, computes_with=("forward", "_convolve")
    ),
    Embedding: LayerKind(is_table=True),
    PositionalEmbedding: LayerKind(is_table=True),
    TiedHead: LayerKind(
        attrgetter("embedding.weight"), spread=lambda _, norms: norms[None], is_table=True
    ),
}
"""Layers by their class; of its subclasses those that inherit how they compute."""


def _kinds_for(layer: Any) -> Mapping[type, LayerKind]:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(layer, torch.nn.Module):
        return KINDS
    from tinytorch.transforms.prune.torch import kinds

    return kinds()


def kind_of(layer: Any) -> LayerKind | None:
    """Return the kind of a layer; None for those that hold no weight, or that are not known."""
    for base, kind in _kinds_for(layer).items():
        if isinstance(layer, base) and all(
            getattr(type(layer), name) is getattr(base, name) for name in kind.computes_with
        ):
            return kind
    return None


def find_prunables(
    model: Any, *, keep: Iterable[str] = (), embeddings: bool = False
) -> tuple[list[Prunable], list[Skipped]]:
    """Return the weights that can be pruned, each once, and the layers that hold others.

    A weight is left alone where one of the layers that hold it is.
    """
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    names = {id(tensor): name for name, tensor in adapter.named_tensors(model).items()}
    found: dict[Any, Prunable] = {}
    skipped: list[Skipped] = []
    for path, layer in modules.items():
        kind = kind_of(layer)
        weight = kind.weight(layer) if kind else None
        if kind is None or weight is None:
            reason = _why_unknown(adapter, layer, kind)
            skipped += [Skipped(path, reason)] if reason else []
            continue
        if id(weight) not in names:
            raise ModelError(f"layer {path!r} computes with a weight that the model does not hold")
        memory = adapter.memory_of(weight)  # two tensors on it are one weight
        prunable = found.setdefault(memory, _prunable(adapter, names[id(weight)], weight))
        reason = why_kept(path, keep) or (TABLE if kind.is_table and not embeddings else "")
        reason = reason or (REPLACED if "forward" in vars(layer) else "")
        prunable.reasons[path] = reason or adapter.why_unreadable(weight)
    for path, layer in modules.items():
        for _, tensor in adapter.own_tensors(layer) if kind_of(layer) is None else ():
            if (memory := adapter.memory_of(tensor)) in found:
                found[memory].leave(f"it shares its weight with {path!r}, which is not pruned")
    return list(found.values()), skipped


def _prunable(adapter: Adapter, name: str, weight: Any) -> Prunable:
    if adapter.why_unreadable(weight):
        return Prunable(name, weight, 0, 0, (), {})
    values = adapter.values(weight)
    size = math.prod(values.shape)
    zeros = size - int(namespace_of(values).count_nonzero(values))
    return Prunable(name, weight, size, zeros, tuple(values.shape), {})


def check_rankable(adapter: Adapter, prunables: Iterable[Prunable]) -> None:
    """Raise if a weight that is to be pruned holds what is neither small nor large."""
    for each in prunables:
        values = adapter.values(each.weight)
        if not each.is_left and not namespace_of(values).isfinite(values).all():
            raise SettingError(each.not_finite)


def _why_unknown(adapter: Adapter, layer: Any, kind: LayerKind | None) -> str:
    """Return why a layer that is in no table is skipped; "" if it holds no numbers itself."""
    name = type(layer).__name__
    if kind is not None:
        return "its weight is computed anew before each call"
    packed = adapter.packed_form(layer)
    if packed:
        return (
            f"{name} holds its weight in another form ({packed}); prune the float model that it "
            "was made from"
        )
    own = [tensor for _, tensor in adapter.own_tensors(layer) if adapter.is_parameter(tensor)]
    if not own:
        return ""
    base = next((known for known in _kinds_for(layer) if isinstance(layer, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    count = sum(math.prod(each.shape) for each in own if not adapter.why_unreadable(each))
    return f"{name} is not a layer that is pruned; its {count:,} numbers stay"
