"""Checks of the lab on compression."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tinytorch.core.activations import ReLU
from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.learning.checks.support import (
    NEAR_SUM,
    Array,
    Rng,
    close,
    draw,
    draw_sizes,
    keys_of,
    near_sum,
    number_text,
)
from tinytorch.learning.work import Work, expect
from tinytorch.transforms.distillation import KnowledgeDistillation

# ---------------------------------------------------------------- masks


def _weights(rng: Rng) -> list[Array]:
    """Return weights of different shapes; those of the last are mostly larger."""
    rows = draw_sizes(rng, 5, 4, 9)
    return [draw(rng, rows[0], rows[1]), draw(rng, rows[2], 2, 3, 3), 3 * draw(rng, *rows[3:])]


def _wanted_masks(keys: Sequence[Array], count: int) -> list[Array]:
    """Return masks that are False for the `count` smallest keys."""
    flat = np.concatenate([each.ravel() for each in keys])
    kept = np.ones(flat.size, bool)
    kept[np.argsort(flat, kind="stable")[:count]] = False
    parts = np.split(kept, np.cumsum([each.size for each in keys])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, keys, strict=True)]


def _same(masks: Sequence[Array], other: Sequence[Array]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(masks, other, strict=True))


def _found_masks(work: Work, weights: Sequence[Array], sparsity: float) -> list[Array]:
    given = [each.copy() for each in weights]
    found = work.magnitude_masks(given, sparsity)
    expect(
        isinstance(found, (list, tuple)) and len(found) == len(weights),
        "no-list",
        f"magnitude_masks returns a list of {len(weights)} masks, one per weight",
    )
    masks = [np.asarray(each) for each in found]
    for mask, weight in zip(masks, weights, strict=True):
        expect(
            mask.shape == weight.shape,
            "wrong-shape",
            f"a mask has the shape {mask.shape}, and its weight {weight.shape}",
        )
        expect(mask.dtype == np.bool_, "not-bool", f"a mask is of {mask.dtype}; it should be bool")
    expect(
        _same(given, weights), "weights-changed", "the weights were changed; only masks are made"
    )
    return masks


def check_masks(work: Work, rng: Rng) -> None:
    """The smallest weights of all layers together are masked, by absolute value."""
    for low, high in ((0.2, 0.4), (0.6, 0.9)):
        weights = _weights(rng)
        total = sum(each.size for each in weights)
        count = int(rng.uniform(low, high) * total)
        sparsity = (count - 0.3) / total  # rounds to count, and is cut off to one less
        found = _found_masks(work, weights, sparsity)
        sizes = [np.abs(each) for each in weights]
        wanted = _wanted_masks(sizes, count)
        by_layer = [_wanted_masks([each], round(sparsity * each.size))[0] for each in sizes]
        wrong = (
            (
                "mask-inverted",
                "your masks are True for what goes; True is what is kept",
                wanted,
                True,
            ),
            (
                "largest-pruned",
                "the largest weights go; it is the smallest that matter least",
                _wanted_masks([-each for each in sizes], count),
                False,
            ),
            (
                "sign-forgotten",
                "very negative weights go first; what counts is the absolute value",
                _wanted_masks(weights, count),
                False,
            ),
            (
                "per-layer",
                "each layer loses the same share; they should compete with each other",
                by_layer,
                False,
            ),
        )
        if _same(found, wanted):
            continue
        for code, words, masks, is_inverted in wrong:
            these = [~each for each in masks] if is_inverted else masks
            expect(not _same(found, these), code, words)
        _check_count(found, count, sparsity, total)
        expect(False, "wrong-masks", "another choice of weights is smaller")


def _check_count(found: Sequence[Array], count: int, sparsity: float, total: int) -> None:
    gone = sum(int((~each).sum()) for each in found)
    expect(
        gone == count,
        "wrong-count",
        f"{gone} of {total} weights go; at a sparsity of {sparsity:.4f} it is {count}",
    )


def check_equal_weights(work: Work, rng: Rng) -> None:
    """Where many weights are equally small, as many go as were asked for."""
    weights = [rng.choice([-1.0, 1.0, 2.0], (9, 7)).astype(np.float32), np.ones((5, 4), np.float32)]
    for count in (int(rng.integers(3, 30)), 0, 83):
        found = _found_masks(work, weights, count / 83)
        gone = sum(int((~each).sum()) for each in found)
        expect(
            gone == count,
            "ties",
            f"{count} of 83 weights should go, and {gone} do: many of them have the same size, and "
            "a threshold takes all of these or none",
        )


def check_sparsity(work: Work, rng: Rng) -> None:
    """The sparsity is the share of zeros among all weights, between 0 and 1."""
    for _ in range(2):
        weights = [draw(rng, 4, 5), draw(rng, 30, 20)]
        weights[0][rng.random((4, 5)) < 0.8] = 0
        weights[1][rng.random((30, 20)) < 0.2] = 0
        shares = [float((each == 0).mean()) for each in weights]
        zeros = sum(int((each == 0).sum()) for each in weights)
        found = work.sparsity_of(weights)
        expect(
            not close(found, 100 * zeros / 620), "percent", "a share is asked for, not a percentage"
        )
        expect(
            not close(found, np.mean(shares)),
            "mean-of-layers",
            "that is the mean of the layers; a large layer has more weights than a small one",
        )
        expect(not close(found, 1 - zeros / 620), "density", "you count the weights that are left")
        expect(close(found, zeros / 620), "wrong-sparsity", f"{zeros} of 620 weights are zero")


# ---------------------------------------------------------------- recover


class _Spied:
    """An optimizer that counts its calls."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.cleared, self.stepped = optimizer, 0, 0

    def zero_grad(self) -> None:
        self.cleared += 1
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.stepped += 1
        self.optimizer.step()


class _Training:
    """A model with an optimizer that has a past, masks, and batches."""

    def __init__(self, rng: Rng) -> None:
        inputs, hidden, classes = draw_sizes(rng, 3, 5, 9)
        self.model = Sequential(Linear(inputs, hidden, rng=rng), ReLU(), Linear(hidden, classes))
        self.kept = [rng.random(each.weight.shape) < 0.5 for each in self.model.layers[::2]]
        labels = rng.integers(0, classes, (4, 12))
        self.batches = [(Tensor(draw(rng, 12, inputs)), Tensor(each)) for each in labels]

    def begun(self) -> tuple[Sequential, Any, list[tuple[Any, Array]]]:
        """Return a copy of the model, an optimizer with momentum, and the pairs."""
        model = copy.deepcopy(self.model)
        optimizer = Adam(model.parameters(), lr=0.05)
        CrossEntropyLoss()(model(self.batches[0][0]), self.batches[0][1]).backward()
        optimizer.step()
        weights = [each.weight for each in model.layers[::2]]
        return model, optimizer, list(zip(weights, self.kept, strict=True))

    def reference(self) -> tuple[list[Array], list[float]]:
        """Return the parameters and the losses that there should be."""
        model, optimizer, pairs = self.begun()
        losses = []
        for inputs, labels in self.batches:
            for parameter, kept in pairs:
                parameter.data = parameter.data * kept
            optimizer.zero_grad()
            error = CrossEntropyLoss()(model(inputs), labels)
            error.backward()
            optimizer.step()
            losses.append(float(error.data))
        for parameter, kept in pairs:
            parameter.data = parameter.data * kept
        return [each.data for each in model.parameters()], losses


def check_zeros_stay(work: Work, rng: Rng) -> None:
    """What is masked is zero in every call of the model and after the last step."""
    case = _Training(rng)
    model, optimizer, pairs = case.begun()
    dense_calls = []

    def loss(outputs: Tensor, labels: Any) -> Tensor:
        dense_calls.append(any(parameter.data[~kept].any() for parameter, kept in pairs))
        return CrossEntropyLoss()(outputs, labels)

    before = [parameter.data.copy() for parameter, _ in pairs]
    losses = work.train_masked(model, pairs, list(case.batches), loss, _Spied(optimizer))
    expect(
        isinstance(losses, (list, tuple, np.ndarray)) and len(losses) == len(case.batches),
        "wrong-losses",
        f"a list of {len(case.batches)} losses is returned, one per batch",
    )
    is_lost = any(parameter.data[~kept].any() for parameter, kept in pairs)
    expect(
        not is_lost,
        "zeros-lost",
        "after training, weights that are masked are not zero: an optimizer moves weights by what "
        "it remembers, too, so the mask has to be put on after every step",
    )
    expect(
        not dense_calls[0],
        "not-before-first",
        "the first batch met weights without zeros: put the masks on before it, too",
    )
    expect(
        not any(dense_calls),
        "mask-late",
        "a batch met weights without zeros: put the masks on after every step",
    )
    moved = all(
        (parameter.data[kept] != old[kept]).any()
        for (parameter, kept), old in zip(pairs, before, strict=True)
    )
    expect(moved, "not-trained", "the weights that are kept have not moved")


def check_training(work: Work, rng: Rng) -> None:
    """The weights that are kept, and the biases, are trained as ever, with fresh gradients."""
    case = _Training(rng)
    model, optimizer, pairs = case.begun()
    spied = _Spied(optimizer)
    losses = work.train_masked(model, pairs, list(case.batches), CrossEntropyLoss(), spied)
    wanted, wanted_losses = case.reference()
    expect(
        spied.cleared >= spied.stepped,
        "no-zero-grad",
        f"gradients were cleared {spied.cleared} times in {spied.stepped} steps; they add up",
    )
    expect(
        spied.stepped == len(case.batches),
        "wrong-steps",
        f"{len(case.batches)} batches, and {spied.stepped} steps",
    )
    expect(
        near_sum(losses, wanted_losses),
        "wrong-losses",
        f"the losses are {[f'{each:.3f}' for each in wanted_losses]} for this case",
    )
    same = all(map(near_sum, [each.data for each in model.parameters()], wanted))
    expect(same, "wrong-training", "the weights in the end are not those of this training")


# ---------------------------------------------------------------- shrink


def _mlp(rng: Rng) -> Sequential:
    sizes = draw_sizes(rng, 4, 5, 12)
    linears = [Linear(*pair, rng=rng) for pair in pairwise(sizes)]
    return Sequential(linears[0], ReLU(), linears[1], ReLU(), linears[2])


def _cnn(rng: Rng) -> Sequential:
    first, second = draw_sizes(rng, 2, 4, 8)
    return Sequential(
        Conv2d(2, first, 3, padding=1, rng=rng),
        ReLU(),
        MaxPool2d(2),
        Conv2d(first, second, 3, padding=1, rng=rng),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(second * 4, 5, rng=rng),
    )


def _inputs_of(rng: Rng, model: Sequential) -> Tensor:
    first = model.layers[0]
    return Tensor(
        draw(rng, 3, first.in_features) if isinstance(first, Linear) else draw(rng, 3, 2, 8, 8)
    )


def _weighted(model: Sequential) -> list[int]:
    return [n for n, each in enumerate(model.layers) if isinstance(each, (Linear, Conv2d))]


def _outputs(layer: Any) -> int:
    return int(layer.weight.shape[1 if isinstance(layer, Linear) else 0])


def check_strongest(work: Work, rng: Rng) -> None:
    """The outputs with the largest weights are chosen, in ascending order of their numbers."""
    for layer in (Linear(9, 12, rng=rng), Conv2d(12, 8, 3, rng=rng)):
        outs = 1 if isinstance(layer, Linear) else 0
        sizes = rng.permutation(np.linspace(0.5, 3, _outputs(layer))).astype(np.float32)
        shape = [1] * layer.weight.data.ndim
        shape[outs] = -1
        layer.weight.data = np.sign(draw(rng, *layer.weight.shape)) * sizes.reshape(shape)
        count = int(rng.integers(3, 6))
        wanted = np.sort(np.argsort(sizes)[-count:])
        found = np.asarray(work.strongest(layer, count))
        expect(
            found.shape == (count,),
            "wrong-count",
            f"{count} outputs are asked for, and {found.shape} is what you return",
        )
        expect(
            not np.array_equal(np.sort(found), np.sort(np.argsort(sizes)[:count])),
            "weakest",
            "these are the outputs with the smallest weights",
        )
        expect(
            set(found.tolist()) == set(wanted.tolist()),
            "wrong-outputs",
            f"a {type(layer).__name__} with a weight of shape {layer.weight.shape}: over which "
            "axes do you sum the squares up? One norm per output has to remain",
        )
        expect(
            np.array_equal(found, wanted),
            "unsorted",
            "the right outputs, but not in ascending order: channels would change places",
        )


def check_shrink_dense(work: Work, rng: Rng) -> None:
    """Neurons go with their weights, their bias, and the weights of the next layer."""
    for _ in range(2):
        _check_shrunk(work, rng, _mlp(rng))


def check_shrink_convolutions(work: Work, rng: Rng) -> None:
    """Channels go through pooling and Flatten: each takes a block of the Linear's inputs along."""
    for _ in range(2):
        _check_shrunk(work, rng, _cnn(rng))


def check_some_layers(work: Work, rng: Rng) -> None:
    """Layers that are not named keep all their outputs."""
    for build in (_mlp, _cnn):
        model = build(rng)
        _check_shrunk(work, rng, model, places=[int(rng.choice(_weighted(model)[:-1]))])


def _check_shrunk(
    work: Work, rng: Rng, model: Sequential, places: Sequence[int] | None = None
) -> None:
    """Compare a model without channels with one in which they are zero."""
    for each in model.parameters():
        if each.data.ndim == 1:
            each.data = np.abs(draw(rng, *each.shape)) + 0.5  # a bias that nobody can miss
    places = _weighted(model)[:-1] if places is None else places
    keep = {}
    for place in places:
        count = _outputs(model.layers[place])
        # The first output goes, so that what is kept is never the beginning.
        keep[place] = np.sort(1 + rng.permutation(count - 1)[: int(rng.integers(2, count))])
    before = copy.deepcopy(model)
    found = work.shrink(model, {place: each.copy() for place, each in keep.items()})
    is_same = all(
        np.array_equal(one.data, other.data)
        for one, other in zip(model.parameters(), before.parameters(), strict=True)
    )
    expect(is_same, "model-changed", "the given model was changed; make a new Sequential")
    expect(
        isinstance(found, Sequential) and len(found.layers) == len(model.layers),
        "wrong-layers",
        f"a Sequential with {len(model.layers)} layers is expected",
    )
    _check_shapes(found, model, keep)
    _check_outputs(found, model, keep, _inputs_of(rng, model))


def _check_shapes(found: Sequential, model: Sequential, keep: dict[int, Array]) -> None:
    left, count, named = 0, 0, ""
    for place in _weighted(model):
        old, new = model.layers[place], found.layers[place]
        ins = 0 if isinstance(old, Linear) else 1
        outputs, old_inputs = _outputs(old), int(old.weight.shape[ins])
        wanted = len(keep[place]) if place in keep else outputs
        block = old_inputs // count if count else 1
        inputs = left * block if named else old_inputs
        got_inputs, got_outputs = int(new.weight.shape[ins]), _outputs(new)
        expect(
            not (place in keep and got_outputs == outputs),
            "not-removed",
            f"layer {place} still has {outputs} outputs; {wanted} are kept",
        )
        expect(
            got_outputs == wanted,
            "wrong-outputs",
            f"layer {place} has {got_outputs} outputs; it should have {wanted}",
        )
        expect(
            new.bias is not None and new.bias.shape == (wanted,),
            "bias-kept",
            f"layer {place} has {wanted} outputs, and a bias of shape {new.bias.shape}",
        )
        expect(
            not (named and got_inputs == old_inputs),
            "inputs-kept",
            f"{named} lost outputs, and layer {place} still takes {old_inputs} inputs: both ends "
            "of a channel have to go",
        )
        expect(
            not (block > 1 and got_inputs == left),
            "flatten-blocks",
            f"layer {place} has {got_inputs} inputs, one per channel; after Flatten each channel "
            f"has {block}",
        )
        expect(
            got_inputs == inputs,
            "wrong-inputs",
            f"layer {place} takes {got_inputs} inputs; it should take {inputs}",
        )
        left, count = wanted, outputs
        named = f"layer {place}" if place in keep else ""


def _zeroed(model: Sequential, keep: dict[int, Array], *, bias: bool = True) -> Sequential:
    """Return a copy in which the outputs that are not kept are zero."""
    other = copy.deepcopy(model)
    for place, kept in keep.items():
        layer = other.layers[place]
        gone = np.setdiff1d(np.arange(_outputs(layer)), kept)
        weight = layer.weight.data if isinstance(layer, Conv2d) else layer.weight.data.T
        weight[gone] = 0
        if bias:
            layer.bias.data[gone] = 0
    return other


def _check_outputs(found: Sequential, model: Sequential, keep: dict[int, Array], x: Tensor) -> None:
    with no_grad():
        got, wanted = found(x).data, _zeroed(model, keep)(x).data
        first = _first_weights(found, model, keep)
    expect(
        first,
        "wrong-channels",
        "the sizes are right, but the channels that are left are not those that are kept",
    )
    for place in _weighted(model):
        bias = model.layers[place].bias.data
        bias = bias[keep[place]] if place in keep else bias
        expect(
            near_sum(found.layers[place].bias.data, bias),
            "wrong-bias",
            f"the bias of layer {place} is not that of the outputs that are kept",
        )
    expect(
        near_sum(got, wanted),
        "wrong-inputs-kept",
        "the sizes are right, and the outputs are not those of the model with zeros in the place "
        "of these channels: which inputs of the next layers belong to them?",
    )


def _first_weights(found: Sequential, model: Sequential, keep: dict[int, Array]) -> bool:
    """Return whether the first layer has the weights of its kept outputs."""
    layer, made = model.layers[0], found.layers[0]
    outs = 1 if isinstance(layer, Linear) else 0
    kept = keep.get(0)
    wanted = layer.weight.data if kept is None else layer.weight.data.take(kept, axis=outs)
    return near_sum(made.weight.data, wanted)


# ---------------------------------------------------------------- factors


def _factors(work: Work, weight: Array, rank: int) -> tuple[Array, Array]:
    found = work.factor(weight, rank)
    expect(
        isinstance(found, (tuple, list)) and len(found) == 2,
        "no-pair",
        "factor returns two matrices: (inputs, rank) and (rank, outputs)",
    )
    first, second = (np.asarray(each) for each in found)
    shapes = (len(weight), rank), (rank, weight.shape[1])
    full = min(weight.shape)
    expect(
        not (first.shape[-1] == full != rank),
        "rank-ignored",
        f"you keep all {full} singular values; {rank} are asked for",
    )
    expect(
        (first.shape, second.shape) == shapes,
        "wrong-shape",
        f"the matrices have the shapes {first.shape} and {second.shape}; they should have "
        f"{shapes[0]} and {shapes[1]}",
    )
    return first, second


def check_factor(work: Work, rng: Rng) -> None:
    """The product of both is the nearest matrix of that rank."""
    for shape in ((12, 7), (6, 15)):
        weight, rank = draw(rng, *shape), int(rng.integers(2, 5))
        u, s, v = np.linalg.svd(weight.astype(np.float64), full_matrices=False)
        product = np.matmul(*_factors(work, weight, rank))

        def of(values: Array, u: Array = u, v: Array = v) -> Array:
            return (u[:, : len(values)] * values) @ v[: len(values)]

        for values, code, words in (
            (np.ones(rank), "values-missing", "the singular values are missing in the product"),
            (s[:rank] ** 2, "values-twice", "the singular values are in both matrices: s * s"),
            (np.sqrt(s[:rank]), "values-missing", "only roots of the singular values are there"),
        ):
            expect(not near_sum(product, of(values)), code, words)
        smallest = (u[:, -rank:] * s[-rank:]) @ v[-rank:]
        expect(
            not near_sum(product, smallest),
            "smallest-kept",
            "you keep the smallest singular values",
        )
        best = np.linalg.norm(weight - of(s[:rank]))
        off = np.linalg.norm(weight - product)
        expect(
            off <= best * (1 + NEAR_SUM),
            "wrong-product",
            f"the product is {off:.4g} away from the matrix, the best of rank {rank} {best:.4g}",
        )


def check_largest_rank(work: Work, rng: Rng) -> None:
    """The largest rank that pays takes fewer numbers than the matrix, not as many."""
    sides = [int(each) for each in 2 * rng.integers(3, 40, 3)]
    cases = [(side, side) for side in sides] + [
        (int(one), int(other)) for one, other in rng.integers(2, 200, (5, 2))
    ]
    for inputs, outputs in [*cases, (3 * sides[0], 6 * sides[0]), (1, 5), (2, 2)]:
        found = work.largest_rank(inputs, outputs)
        expect(
            float(found).is_integer(),
            "not-whole",
            f"a rank is a whole number, not {number_text(found)}",
        )
        numbers, whole = int(found) * (inputs + outputs), inputs * outputs
        expect(
            numbers < whole,
            "does-not-pay",
            f"rank {found} of {inputs} x {outputs} takes {numbers} numbers, and the matrix {whole}",
        )
        expect(
            numbers + inputs + outputs >= whole,
            "rank-too-low",
            f"for {inputs} x {outputs} a rank of {int(found) + 1} pays as well",
        )


def check_rank_for(work: Work, rng: Rng) -> None:
    """The smallest rank keeps the relative error, a norm over a norm, below the limit."""
    for _ in range(3):
        weight, rank, error, mistaken = _rank_case(rng)
        found = work.rank_for(weight, error)
        for code, words, ranks in (
            (
                "error-not-squared",
                "you compare the error with squares; take the root of one or square the other",
                mistaken[:1],
            ),
            (
                "no-squares",
                "you add singular values up; a norm is the root of the sum of their squares",
                mistaken[1:],
            ),
        ):
            expect(found not in ranks, code, words)
        expect(
            found >= rank,
            "rank-too-low",
            f"with rank {found} the relative error is above {error:.3f}",
        )
        expect(
            found == rank,
            "rank-too-high",
            f"rank {rank} already has a relative error below {error:.3f}",
        )


def _rank_case(rng: Rng) -> tuple[Array, int, float, list[int]]:
    """Return a weight, the rank for an error, that error, and the ranks of typical mistakes."""
    while True:
        weight = draw(rng, 30, 20) * np.linspace(2, 0.2, 20, dtype=np.float32)
        values = np.linalg.svd(weight.astype(np.float64), compute_uv=False)
        lost = np.sqrt(_tails(values**2))
        rank = int(rng.integers(5, 14))
        error = float(lost[rank] + lost[rank - 1]) / 2
        sums = _tails(values)
        limits = ((lost**2, error), (sums, error), (sums, error**2))
        mistaken = [int(np.argmax(each <= limit)) for each, limit in limits]
        if all(abs(each - rank) > 1 for each in mistaken):
            return weight, rank, error, mistaken


def _tails(values: Array) -> Array:
    """Return what all but the first 0, 1, ... values add up to, as a share."""
    return np.asarray(np.append(np.cumsum(values[::-1])[::-1], 0) / values.sum())


# ---------------------------------------------------------------- distill


def _log_softmax(logits: Array, temperature: float) -> Array:
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=-1, keepdims=True)
    return np.asarray(scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True)))


def check_log_softened(work: Work, rng: Rng) -> None:
    """Logits are divided by the temperature; rows are logarithms of shares that add up to 1."""
    logits = 3 * draw(rng, *draw_sizes(rng, 2, 3, 8))
    temperature = float(rng.uniform(2, 5))
    with np.errstate(all="ignore"):
        found = np.asarray(work.log_softened(logits.copy(), temperature))
    wrong = (
        ("no-logarithm", "these are shares; their logarithm is asked for", True, temperature),
        ("temperature-ignored", "the temperature changes nothing", False, 1.0),
        ("temperature-inverse", "divide by the temperature, not multiply", False, 1 / temperature),
    )
    for code, words, is_share, at in wrong:
        other = _log_softmax(logits, at)
        expect(not near_sum(found, np.exp(other) if is_share else other), code, words)
    over_rows = _log_softmax(logits.T, temperature).T
    expect(
        not near_sum(found, over_rows),
        "wrong-axis",
        "the columns add up to 1; each row is one input",
    )
    expect(
        near_sum(found, _log_softmax(logits, temperature)),
        "wrong-softmax",
        f"at a temperature of {temperature:.2f} the shares of a row add up to "
        f"{np.exp(found.astype(np.float64)).sum(axis=-1).flat[0]:.4g}",
    )
    with np.errstate(all="ignore"):
        large = np.asarray(work.log_softened(np.float32(1e4) * logits, temperature))
    expect(
        np.isfinite(large).all(),
        "overflow",
        "for logits of 10,000 there are numbers that are not finite: exp overflows, and log(0) is "
        "-inf; subtract the largest logit of each row first, and take no logarithm of a share",
    )


class _Lesson:
    """Logits of a student and a teacher, labels, and the parts of the loss."""

    def __init__(self, rng: Rng) -> None:
        rows, classes = draw_sizes(rng, 2, 3, 8)
        self.student, self.teacher = 2 * draw(rng, rows, classes), 2 * draw(rng, rows, classes)
        self.labels = rng.integers(0, classes, rows)
        self.temperature, self.alpha = float(rng.uniform(2, 4)), float(rng.uniform(0.6, 0.8))
        self.rows, self.classes = rows, classes

    def kl(self, *, swapped: bool = False, student_at: float | None = None) -> float:
        log_p = _log_softmax(self.teacher, self.temperature)
        log_q = _log_softmax(self.student, student_at or self.temperature)
        log_p, log_q = (log_q, log_p) if swapped else (log_p, log_q)
        return float((np.exp(log_p) * (log_p - log_q)).sum() / self.rows)

    @property
    def entropy(self) -> float:
        log_p = _log_softmax(self.teacher, self.temperature)
        return float(-(np.exp(log_p) * log_p).sum() / self.rows)

    def plain(self, temperature: float = 1.0) -> float:
        log_q = _log_softmax(self.student, temperature)
        return float(-log_q[np.arange(self.rows), self.labels].mean())

    def together(self, kl: float, plain: float, *, alpha: float | None = None) -> float:
        alpha = self.alpha if alpha is None else alpha
        return alpha * self.temperature**2 * kl + (1 - alpha) * plain


def check_distillation_value(work: Work, rng: Rng) -> None:
    """The loss weighs both parts by alpha, and the softened one by the square of T."""
    case = _Lesson(rng)
    kl, plain, squared = case.kl(), case.plain(), case.temperature**2
    found = work.distillation_loss(
        Tensor(case.student, requires_grad=True),
        case.teacher,
        case.labels,
        case.temperature,
        case.alpha,
    )
    expect(isinstance(found, Tensor), "no-tensor", "the loss is a Tensor, so that it has a graph")
    expect(found.data.size == 1, "not-a-number", f"the loss has the shape {found.shape}")
    value = float(found.data)
    both = case.together
    wrong = (
        (
            "t-squared-missing",
            "the softened part is not multiplied by T²",
            both(kl / squared, plain),
        ),
        ("t-for-t-squared", "T² is asked for, not T", both(kl / case.temperature, plain)),
        ("t-squared-on-both", "T² is for the softened part alone", both(kl, squared * plain)),
        (
            "kl-reversed",
            "KL(student || teacher); p is the teacher's",
            both(case.kl(swapped=True), plain),
        ),
        ("alpha-swapped", "alpha weighs the teacher", both(kl, plain, alpha=1 - case.alpha)),
        (
            "sum-for-mean",
            "KL is the mean over the rows, not their sum",
            both(kl * case.rows, plain),
        ),
        ("mean-of-classes", "sum over classes, mean over rows", both(kl / case.classes, plain)),
        (
            "student-not-softened",
            "the student's logits are softened by T, too",
            both(case.kl(student_at=1.0), plain),
        ),
        (
            "labels-softened",
            "the cross entropy is that of the plain logits",
            both(kl, case.plain(case.temperature)),
        ),
        (
            "entropy-missing",
            "p log p is missing: the gradient is the same, but the value is no KL, and not 0 where "
            "both agree",
            both(kl + case.entropy, plain),
        ),
    )
    if near_sum(value, both(kl, plain)):
        return
    for code, words, other in wrong:
        expect(not near_sum(value, other), code, words)
    expect(
        False,
        "wrong-loss",
        f"the loss is {number_text(value)}; KL alone is {kl:.5g}, the cross entropy {plain:.5g}, "
        f"T {case.temperature:.3g} and alpha {case.alpha:.3g}",
    )


def check_distillation_gradient(work: Work, rng: Rng) -> None:
    """The gradient reaches the student, and is that of the project's loss."""
    case = _Lesson(rng)
    mine, theirs = (Tensor(case.student.copy(), requires_grad=True) for _ in range(2))
    loss = work.distillation_loss(mine, case.teacher, case.labels, case.temperature, case.alpha)
    loss.backward()
    expect(
        mine.grad is not None,
        "no-gradient",
        "no gradient reaches the student: was its `.data` used on the way?",
    )
    real = KnowledgeDistillation(Module(), Module(), case.temperature, case.alpha)
    real.distillation_loss(theirs, case.teacher, case.labels).backward()
    expect(
        near_sum(mine.grad, theirs.grad),
        "wrong-gradient",
        "the value is right and the gradient is not: is a part of the loss made from `.data`?",
    )


# ---------------------------------------------------------------- weigh


def _sparse_weight(rng: Rng) -> Array:
    """Return a matrix with zeros; its first and one other row have nothing else."""
    weight = draw(rng, *draw_sizes(rng, 2, 6, 12))
    weight[rng.random(weight.shape) < 0.6] = 0
    weight[0], weight[int(rng.integers(2, 5))], weight[1, 1] = 0, 0, 1.5
    return weight


def _packed(weight: Array) -> tuple[Array, Array, Array]:
    rows, columns = np.nonzero(weight)
    starts = np.searchsorted(rows, np.arange(len(weight) + 1)).astype(np.int32)
    return weight[rows, columns], columns.astype(np.uint16), starts


def check_to_sparse(work: Work, rng: Rng) -> None:
    """Rows are written one after the other, and empty rows begin where they end."""
    for _ in range(2):
        weight = _sparse_weight(rng)
        found = work.to_sparse(weight.copy())
        expect(
            isinstance(found, (tuple, list)) and len(found) == 3,
            "no-triple",
            "to_sparse returns three arrays: values, columns and starts",
        )
        values, columns, starts = (np.asarray(each) for each in found)
        wanted = _packed(weight)
        expect(
            values.size != weight.size,
            "zeros-kept",
            "all numbers are there, zeros included",
        )
        expect(
            np.sort(values).tolist() == np.sort(wanted[0]).tolist(),
            "wrong-values",
            f"{wanted[0].size} numbers are not zero, and you return {values.size}",
        )
        expect(
            np.array_equal(values, wanted[0])
            or not np.array_equal(values, _packed(weight.T.copy())[0]),
            "columns-first",
            "you go through the matrix column by column; rows are asked for",
        )
        expect(
            np.array_equal(values, wanted[0]) and np.array_equal(columns, wanted[1]),
            "wrong-columns",
            "values and columns do not go through the rows from left to right",
        )
        expect(
            starts.size != len(weight),
            "starts-short",
            f"{len(weight)} rows need {len(weight) + 1} starts: the last says where the last ends",
        )
        expect(
            not np.array_equal(starts[-len(weight) :], np.diff(wanted[2])),
            "not-cumulative",
            "these are the numbers of values per row; a start counts those of all rows before",
        )
        expect(
            np.array_equal(starts, wanted[2]),
            "wrong-starts",
            f"the starts are {starts.tolist()} for rows with {np.diff(wanted[2]).tolist()} values",
        )
        types = [each.dtype.name for each in (values, columns, starts)]
        expect(
            types == ["float32", "uint16", "int32"],
            "wrong-dtype",
            f"the arrays are of {', '.join(types)}; float32, uint16 and int32 are asked for, since "
            "it is the bytes that count",
        )


def check_from_sparse(work: Work, rng: Rng) -> None:
    """What was packed comes back without losing a bit, empty rows included."""
    for _ in range(2):
        weight = _sparse_weight(rng)
        found = np.asarray(work.from_sparse(*_packed(weight), weight.shape))
        expect(
            found.shape == weight.shape,
            "wrong-shape",
            f"the matrix has the shape {found.shape} instead of {weight.shape}",
        )
        expect(
            np.array_equal(found, weight),
            "wrong-matrix",
            f"{int((found != weight).sum())} of {weight.size} numbers differ; rows "
            f"{np.flatnonzero(~weight.any(axis=1)).tolist()} are empty here",
        )
        expect(found.dtype == np.float32, "wrong-dtype", f"it is of {found.dtype}, not float32")


def check_sizes(work: Work, rng: Rng) -> None:
    """Bytes are those of each form: bits in whole bytes, values, places, and what deflate gives."""
    for shape in ((13, 11), (40, 30)):
        weight = draw(rng, *shape)
        weight[rng.random(shape) < rng.uniform(0.3, 0.9)] = 0
        kept = int(np.count_nonzero(weight))
        found = work.sizes_of(weight.copy())
        keys_of(found, "sizes_of", ("dense", "bitmap", "sparse", "deflated"))
        expect(found["dense"] == 4 * weight.size, "wrong-dense", "a float32 takes 4 bytes")
        bits = (weight.size + 7) // 8
        for wrong, code, words in (
            (weight.size + 4 * kept, "byte-per-bit", "a bit per weight is asked for, not a byte"),
            (bits, "values-missing", "the values that are left have to be stored, too"),
            (4 * kept, "places-missing", "nothing says where the zeros are"),
            (weight.size / 8 + 4 * kept, "half-a-byte", "a file has whole bytes; round up"),
            (weight.size // 8 + 4 * kept, "half-a-byte", "a file has whole bytes; round up"),
        ):
            is_same = weight.size % 8 == 0 and code == "half-a-byte"
            expect(is_same or found["bitmap"] != wrong, code, words)
        expect(
            found["bitmap"] == bits + 4 * kept,
            "wrong-bitmap",
            f"{weight.size} bits and {kept} values take no {number_text(found['bitmap'])} bytes",
        )
        sparse = 6 * kept + 4 * (len(weight) + 1)
        expect(
            found["sparse"] != 6 * kept,
            "starts-missing",
            "without the starts of the rows nobody can read it",
        )
        expect(
            found["sparse"] != 4 * kept,
            "places-missing",
            "the columns and the starts of the rows take bytes, too",
        )
        expect(
            found["sparse"] == sparse,
            "wrong-sparse",
            f"{kept} values with their columns, and {len(weight) + 1} starts are {sparse} bytes",
        )
        expect(
            found["deflated"] == len(zlib.compress(weight.tobytes(), 9)),
            "wrong-deflated",
            f"zlib.compress(..., 9) of the bytes of the array gives another number than "
            f"{number_text(found['deflated'])}",
        )


CHECKS = {
    "masks": (check_masks, check_equal_weights, check_sparsity),
    "recover": (check_zeros_stay, check_training),
    "shrink": (
        check_strongest,
        check_shrink_dense,
        check_shrink_convolutions,
        check_some_layers,
    ),
    "factors": (check_factor, check_largest_rank, check_rank_for),
    "distill": (check_log_softened, check_distillation_value, check_distillation_gradient),
    "weigh": (check_to_sparse, check_from_sparse, check_sizes),
}
