"""Multiply-accumulates of contractions, from the shapes of what was executed.

The convention: dense. Every tap of a kernel counts, also on padding; every pair of a query and a
key counts, also under a mask; of a sparse weight only what is held. Biases are not products and do
not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from tinytorch.models.records import Call, TensorSpec

PACKED_ATTENTION = {
    "aten._flash_attention_forward",
    "aten._efficient_attention_forward",
    "aten._flash_attention_backward",
    "aten._efficient_attention_backward",
}
LAST_SEES_ALL = {"attention", "attention_backward"}
FROM_BOTTOM_RIGHT = 2
"""The `custom_mask_type` of PyTorch's efficient attention in which the last query sees all keys."""


# ---------------------------------------------------------------- products


def product(call: Call, first: int = 0) -> int:
    """(..., m, k) @ (..., k, n), where either side may be a vector: the inner axis per output.

    A sparse matrix multiplies only what it stores.
    """
    left = call.tensor(first)
    if left.stored is not None:
        columns = call.outputs[0].shape[-1] if len(call.outputs[0].shape) > 1 else 1
        return left.stored * columns
    return call.outputs[0].size * left.shape[-1]


def added_product(call: Call) -> int:
    """addmm and similar operators take the added tensor first."""
    return product(call, first=1)


def linear(call: Call) -> int:
    """Each output element is a sum over the last axis of the input, which may be ragged."""
    x = call.tensor(0)
    return call.outputs[0].size * (x.shape or x.parts[0])[-1]


def sparse_linear(call: Call) -> int:
    """Each row is multiplied with the stored weights only."""
    x, values = call.tensor(0), call.tensor(1)
    return x.size // max(1, x.shape[-1]) * values.size


def summed_batch_product(call: Call) -> int:
    """addbmm: (b, m, k) @ (b, k, n), summed over b."""
    batch, rows, inner = call.shape(1)
    return batch * rows * inner * call.shape(2)[-1]


def grouped_product(call: Call) -> int:
    """Products of groups of rows (or of columns, or of the inner axis), as experts need them.

    `offs` holds where each group ends. What lies behind the last group is not multiplied.
    """
    left, right = call.shape(0), call.shape(1)
    ends = call.settings.get("offs")
    if ends is None:  # (groups, m, k) @ (groups, k, n)
        return math.prod(left) * right[-1]
    if len(left) == 2 and len(right) == 3:  # rows are grouped
        return ends[-1] * left[1] * right[2]
    if len(left) == 3 and len(right) == 2:  # columns are grouped
        return left[1] * left[2] * ends[-1]
    return left[0] * ends[-1] * right[1]  # the inner axis is grouped


def trilinear(call: Call) -> int:
    """Bilinear layers: contract the first two factors, then the result with the third.

    The axis `unroll_dim` is a loop: what is summed along it is added up without multiplying.
    """
    expanded = [set(call.settings[f"expand{number}"]) for number in (1, 2, 3)]
    rank = len(call.shape(0)) + len(expanded[0])
    sizes = [1] * rank
    for position, missing in enumerate(expanded):
        axes = [axis for axis in range(rank) if axis not in missing]
        for axis, length in zip(axes, call.shape(position), strict=True):
            sizes[axis] = max(sizes[axis], length)
    summed = set(call.settings["sumdim"]) - {call.settings["unroll_dim"]}
    in_first = summed & expanded[2]  # axes that the third factor does not have
    macs = 0
    if in_first:
        macs += math.prod(sizes[a] for a in range(rank) if a not in expanded[0] & expanded[1])
    if summed - in_first:
        macs += math.prod(sizes[axis] for axis in range(rank) if axis not in in_first)
    return macs


def squared_distances(call: Call) -> int:
    """Distances of all pairs by one product, with two more columns for the squares."""
    return call.outputs[0].size * (call.shape(0)[-1] + 2)


# ---------------------------------------------------------------- convolution


def convolution(call: Call) -> int:
    """Each output (transposed: each input) position is multiplied with every tap of its group."""
    weight = call.shape(1)  # (out, in / groups, *kernel), transposed: (in, out / groups, *kernel)
    positions = call.tensor(0) if call.settings.get("transposed") else call.outputs[0]
    return positions.size * math.prod(weight[1:])


def packed_convolution(call: Call) -> int:
    """Convolution with packed weights, where only the settings have the size of a patch."""
    inputs = call.shape(0)[1] // call.settings.get("groups", 1)
    return call.outputs[0].size * inputs * math.prod(call.settings["kernel_size"])


def time_first_convolution(call: Call) -> int:
    """conv_tbc: weight (kernel, in, out), every tap for each output position."""
    return call.outputs[0].size * math.prod(call.shape(1)[:2])


def convolution_backward(call: Call) -> int:
    """As much as forward for the gradient of the input, and again for that of the weight."""
    wanted = call.settings["output_mask"][:2]
    positions = call.tensor(1) if call.settings["transposed"] else call.tensor(0)
    return sum(wanted) * positions.size * math.prod(call.shape(2)[1:])


def convolution_input_gradient(call: Call) -> int:
    """(grad, weight) -> gradient of the input."""
    return call.tensor(0).size * math.prod(call.shape(1)[1:])


def convolution_weight_gradient(call: Call) -> int:
    """(grad, input) -> gradient of the weight."""
    return call.tensor(0).size * math.prod(call.settings["weight_shape"][1:])


# ---------------------------------------------------------------- attention


def attention(call: Call) -> int:
    """Scores and weighted sum: query (..., heads, queries, d), key (..., keys, d), value likewise.

    With grouped queries there are fewer heads of keys; every query still attends to every key.
    """
    query, key, value = (call.shape(position) for position in range(3))
    rows = math.prod(call.outputs[0].shape[:-1])  # batch, heads, queries
    return rows * key[-2] * (query[-1] + value[-1])


def attention_backward(call: Call) -> int:
    """(grad, query, key, value, ...): each of the two products has two gradients.

    A fused kernel computes the scores once more; that is recomputation, not in this number.
    """
    grad, query, key, value = (call.shape(position) for position in range(4))
    rows = math.prod(grad[:-1])
    return 2 * rows * key[-2] * (query[-1] + value[-1])


def recomputed_scores(call: Call) -> int:
    """The product that a fused backward kernel does again: query @ key^T."""
    grad, query, key = (call.shape(position) for position in range(3))
    return math.prod(grad[:-1]) * key[-2] * query[-1]


def causal_pairs(queries: int, keys: int, *, last_sees_all: bool) -> int:
    """Count the pairs of query and key that a causal mask leaves."""
    ahead = keys - queries if last_sees_all else 0
    return sum(max(0, min(keys, row + 1 + ahead)) for row in range(queries))


def visible_to_causal(call: Call, macs: int) -> int:
    """Return the multiply-accumulates of an attention that its causal mask leaves."""
    mask_type = call.settings.get("custom_mask_type")
    is_causal = call.settings.get("causal") or call.settings.get("is_causal") or mask_type
    if not is_causal or not macs:
        return macs
    first = 1 if "backward" in call.kind else 0
    if call.kind in PACKED_ATTENTION:
        lengths = _packed_lengths(call, first)
    else:
        lengths = [(call.shape(first)[-2], call.shape(first + 1)[-2])]
    last_sees_all = call.kind in LAST_SEES_ALL or mask_type == FROM_BOTTOM_RIGHT
    pairs = sum(causal_pairs(q, k, last_sees_all=last_sees_all) for q, k in lengths)
    return macs * pairs // sum(q * k for q, k in lengths)


def packed_attention(call: Call, first: int = 0) -> int:
    """Attention on (batch, time, heads, d), or on sequences laid end to end with their bounds."""
    heads, width = call.shape(first)[-2:]
    return _packed_pairs(call, first) * heads * (width + call.shape(first + 2)[-1])


def packed_attention_backward(call: Call) -> int:
    """(grad, query, key, value, ...): each of the two products has two gradients."""
    return 2 * packed_attention(call, first=1)


def recomputed_packed_scores(call: Call) -> int:
    """The product that a fused backward kernel does again: query @ key^T."""
    heads, width = call.shape(1)[-2:]
    return _packed_pairs(call, first=1) * heads * width


def _packed_pairs(call: Call, first: int) -> int:
    return sum(queries * keys for queries, keys in _packed_lengths(call, first))


def _packed_lengths(call: Call, first: int) -> list[tuple[int, int]]:
    """Return the numbers of queries and of keys of every sequence."""
    starts = [
        next((call.settings[name] for name in names if call.settings.get(name) is not None), None)
        for names in (("cum_seq_q", "cu_seqlens_q"), ("cum_seq_k", "cu_seqlens_k"))
    ]
    if starts[0] is None or starts[1] is None:
        batch, queries = call.shape(first)[:2]
        return [(queries, call.shape(first + 1)[1])] * batch
    return list(zip(_lengths(starts[0]), _lengths(starts[1]), strict=True))


def _lengths(starts: Sequence[int]) -> list[int]:
    return [end - start for start, end in pairwise(starts)]


def multi_head_attention(call: Call) -> int:
    """The fused layer: projections of query, key and value, attention, output projection.

    Of ragged batches only real tokens are projected; attention pads them to the longest.
    """
    query, key = call.tensor(0), call.tensor(1)
    width = call.settings["embed_dim"]
    tokens_in, tokens_out = 2 * key.size // width, 2 * query.size // width
    pairs = len(_tokens(query)) * max(_tokens(query)) * max(_tokens(key))
    return (tokens_in + tokens_out) * width * width + 2 * pairs * width


def encoder_layer(call: Call) -> int:
    """A whole encoder layer in one kernel: attention with its projections, and the two layers."""
    source = call.tensor(0)
    width = call.settings["embed_dim"]
    hidden = call.shape(9)[0]  # the first feed-forward weight: (hidden, width)
    tokens = source.size // width
    pairs = len(_tokens(source)) * max(_tokens(source)) ** 2
    return tokens * (4 * width * width + 2 * width * hidden) + 2 * pairs * width


def _tokens(sequences: TensorSpec) -> list[int]:
    """Return the length of every sequence of a batch, also of a ragged one."""
    if sequences.parts:
        return [part[0] for part in sequences.parts]
    batch, time = sequences.shape[:2]
    return [time] * batch


# ---------------------------------------------------------------- recurrent layers


def recurrent_layer(call: Call) -> int:
    """One layer in one direction: every token is multiplied with both weight matrices."""
    tokens = math.prod(call.shape(0)[:-1])
    return tokens * (call.tensor(1).size + call.tensor(2).size)


def recurrent_network(call: Call) -> int:
    """All layers and directions in one kernel: every token is multiplied with every matrix."""
    weights = call.inputs[1]
    assert isinstance(weights, tuple)
    tokens = math.prod(call.shape(0)[:-1])
    return tokens * sum(weight.size for weight in weights if len(weight.shape) == 2)


def recurrent_layer_backward(call: Call) -> int:
    """Weights get gradients, every step but the first hands one to the step before, and the input
    and the first state get theirs where they ask for one.
    """
    by_input, by_state = call.tensor(1).size, call.tensor(2).size
    tokens, first_step = math.prod(call.shape(0)[:-1]), math.prod(call.shape(5)[:-1])
    wants_input, wants_state = (name in call.settings["asking"] for name in ("input", "hx_"))
    spared = (0 if wants_input else tokens * by_input) + (
        0 if wants_state else first_step * by_state
    )
    return 2 * tokens * (by_input + by_state) - spared


def recurrent_network_backward(call: Call) -> int:
    """As of a layer; the lowest layer gives the gradient of the input, every one that of a state.

    Weights stand in groups, one per layer and direction: (by input, by state, ...).
    """
    weights, group = call.inputs[1], call.settings["weight_stride0"]
    assert isinstance(weights, tuple)
    wants_input, wants_state, *_, wants_weights = call.settings["output_mask"]
    lowest = weights[: (2 if call.settings["bidirectional"] else 1) * group : group]
    tokens, first_step = math.prod(call.shape(0)[:-1]), call.shape(3)[-2]
    spared = 0 if wants_input else tokens * sum(weight.size for weight in lowest)
    if not wants_state:
        spared += first_step * sum(weight.size for weight in weights[1::group])
    return (1 + bool(wants_weights)) * recurrent_network(call) - spared


def unasked_layer_gradients(call: Call) -> int:
    """Products of a fused backward kernel for gradients that are not needed."""
    return 2 * recurrent_layer(call) - recurrent_layer_backward(call)


def unasked_network_gradients(call: Call) -> int:
    """Products of a fused backward kernel for gradients that are not needed."""
    gradients = 1 + bool(call.settings["output_mask"][-1])
    return gradients * recurrent_network(call) - recurrent_network_backward(call)
