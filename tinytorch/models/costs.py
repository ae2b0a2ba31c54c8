"""The cost table: what each kind of operation costs, for both frameworks, on one page.

Kinds without a prefix are kernels of ``tinytorch.core``; ``aten.`` and others are PyTorch's
operators, without their overload and without the underscore of in-place variants.

Conventions. The headline is the multiply-accumulates of contractions; a FLOP count is twice that.
Everything else that computes is listed separately as `other_flops`, where each elementary function
(also an exponential) counts once per element. Bytes are those that are read and written, each once;
see :class:`Rule`. A kind that is not in the table, and that its framework does not mark as
elementwise, has no cost: it is named in ``not_counted``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tinytorch.models import contractions as of
from tinytorch.models.contractions import visible_to_causal
from tinytorch.models.records import Argument, Call, Cost, TensorSpec

# ---------------------------------------------------------------- the kinds of rules in the cost
# table: how operations and bytes are counted for each
#
# Bytes are those of the tensors that an operation reads and writes, each once: what an ideal cache
# would leave to memory. Unless a rule says otherwise, all that goes in is read, and all that comes
# out or is changed in place is written.

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
    """Return the bytes of `count` elements of a tensor, at most those of all."""
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


# ---------------------------------------------------------------- the kinds of rules


def contraction(macs: Count, recomputed: Count | None = None) -> Rule:
    """Sums of products."""
    return Rule("contraction", macs=macs, recomputed=recomputed)


def pointwise(per_element: int = 1) -> Rule:
    """`per_element` operations for each element of the output."""
    return Rule("elementwise", other=lambda call: per_element * _largest(call))


def reduction(per_element: int = 1) -> Rule:
    """`per_element` operations for each element of the input."""
    return Rule("reduction", other=lambda call: per_element * call.tensor(0).size)


def normalisation(per_element: int) -> Rule:
    """`per_element` operations for each element of the input."""
    return Rule("normalisation", other=lambda call: per_element * call.tensor(0).size)


def on_list(per_element: int = 1) -> Rule:
    """`per_element` operations for each element of each tensor of a list."""
    return Rule("update", other=lambda call: per_element * _first_size(call))


def update(per_element: int) -> Rule:
    """An optimizer step: `per_element` operations for each parameter."""
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


# ---------------------------------------------------------------- the cost table: what each kind
# of operation costs, for both frameworks, on one page


def cost_of(call: Call, rule: Rule | None = None) -> Cost | None:
    """Return the cost of a call, or None when there is no formula for its kind."""
    rule = rule or COSTS.get(call.kind)
    return rule.cost_of(call) if rule else None


FORWARD_PRODUCTS: dict[str, Rule] = {
    # matrix products: (..., m, k) @ (..., k, n) = m n k
    "matmul": contraction(of.product),
    "linear": contraction(of.linear),
    # the same with weights of a byte, or half of one; floats need no sums of their columns
    **dict.fromkeys(
        ("int8_matmul", "int8_linear_dynamic", "int8_linear_static", "int4_linear_weight_only"),
        contraction(of.linear),
    ),
    "int8_linear_weight_only": Rule("contraction", macs=of.linear, read=all_but(3)),
    # a sparse weight: only what is not zero is multiplied, and counted
    "sparse_linear": contraction(of.sparse_linear),
    "aten.mm": contraction(of.product),
    "aten.bmm": contraction(of.product),
    "aten.mv": contraction(of.product),
    "aten.dot": contraction(of.product),
    "aten.vdot": contraction(of.product),
    "aten.linear": contraction(of.linear),
    "aten.addmm": contraction(of.added_product),
    "aten._addmm_activation": contraction(of.added_product),
    "aten.baddbmm": contraction(of.added_product),
    "aten.addmv": contraction(of.added_product),
    "aten.addbmm": contraction(of.summed_batch_product),
    "aten._int_mm": contraction(of.product),
    "aten._scaled_mm": contraction(of.product),
    "aten._grouped_mm": contraction(of.grouped_product),
    "aten._scaled_grouped_mm": contraction(of.grouped_product),
    "aten._trilinear": contraction(of.trilinear),
    "aten._euclidean_dist": contraction(of.squared_distances),
    "aten._sparse_addmm": contraction(of.added_product),
    "aten._sparse_mm": contraction(of.product),
    "aten._weight_int8pack_mm": contraction(of.product),
    "aten._weight_int4pack_mm": contraction(of.product),
    "aten._weight_int4pack_mm_for_cpu": contraction(of.product),
    "aten._dyn_quant_matmul_4bit": contraction(of.product),
    "aten.mkldnn_linear": contraction(of.linear),
    "mkldnn._linear_pointwise": contraction(of.linear),
    "quantized.linear": contraction(of.linear),
    "quantized.linear_relu": contraction(of.linear),
    "quantized.linear_dynamic": contraction(of.linear),
    "quantized.linear_relu_dynamic": contraction(of.linear),
    "quantized.linear_dynamic_fp16": contraction(of.linear),
    "onednn.qlinear_pointwise": contraction(of.linear),
    # convolution: every output (transposed: input) position times every tap
    "conv2d": contraction(of.convolution),
    **dict.fromkeys(
        ("int8_conv2d_dynamic", "int8_conv2d_static"), contraction(of.packed_convolution)
    ),
    "int8_conv2d_weight_only": Rule("contraction", macs=of.packed_convolution, read=all_but(3)),
    "aten.convolution": contraction(of.convolution),
    "aten._convolution": contraction(of.convolution),
    "aten.convolution_overrideable": contraction(of.convolution),
    "aten.cudnn_convolution": contraction(of.convolution),
    "aten.mkldnn_convolution": contraction(of.convolution),
    "aten.conv_tbc": contraction(of.time_first_convolution),
    "aten._slow_conv2d_forward": contraction(of.convolution),
    "aten._conv_depthwise2d": contraction(of.convolution),
    # attention: scores, and the values weighed by them
    "attention": contraction(of.attention),
    "aten._scaled_dot_product_flash_attention": contraction(of.attention),
    "aten._scaled_dot_product_flash_attention_for_cpu": contraction(of.attention),
    "aten._scaled_dot_product_efficient_attention": contraction(of.attention),
    "aten._scaled_dot_product_cudnn_attention": contraction(of.attention),
    "aten._scaled_dot_product_fused_attention_overrideable": contraction(of.attention),
    "aten._scaled_dot_product_attention_math_for_mps": contraction(of.attention),
    "flex_attention": contraction(of.attention),
    "aten._flash_attention_forward": contraction(of.packed_attention),
    "aten._efficient_attention_forward": contraction(of.packed_attention),
    "aten._native_multi_head_attention": contraction(of.multi_head_attention),
    "aten._transformer_encoder_layer_fwd": contraction(of.encoder_layer),
    # recurrent layers: every token times every weight matrix
    "aten.mkldnn_rnn_layer": contraction(of.recurrent_layer),
    "aten._cudnn_rnn": contraction(of.recurrent_network),
    "aten.miopen_rnn": contraction(of.recurrent_network),
}

BACKWARD_PRODUCTS: dict[str, Rule] = {
    "conv2d_backward_input": contraction(of.convolution_input_gradient),
    "conv2d_backward_weight": contraction(of.convolution_weight_gradient),
    "aten.convolution_backward": contraction(of.convolution_backward),
    "attention_backward": contraction(of.attention_backward),
    **dict.fromkeys(
        (
            "aten._scaled_dot_product_flash_attention_backward",
            "aten._scaled_dot_product_flash_attention_for_cpu_backward",
            "aten._scaled_dot_product_efficient_attention_backward",
            "aten._scaled_dot_product_cudnn_attention_backward",
            "aten._scaled_dot_product_fused_attention_overrideable_backward",
        ),
        contraction(of.attention_backward, recomputed=of.recomputed_scores),
    ),
    **dict.fromkeys(
        ("aten._flash_attention_backward", "aten._efficient_attention_backward"),
        contraction(of.packed_attention_backward, recomputed=of.recomputed_packed_scores),
    ),
    "aten.mkldnn_rnn_layer_backward": contraction(
        of.recurrent_layer_backward, recomputed=of.unasked_layer_gradients
    ),
    "aten._cudnn_rnn_backward": contraction(
        of.recurrent_network_backward, recomputed=of.unasked_network_gradients
    ),
}

ELEMENTWISE: dict[str, Rule] = {
    **dict.fromkeys(
        ("add", "subtract", "multiply", "divide", "power", "power_scalar", "negative", "absolute"),
        POINTWISE,
    ),
    **dict.fromkeys(("sign", "exp", "log", "sqrt", "tanh", "relu", "where"), POINTWISE),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal"), POINTWISE),
    **dict.fromkeys(("greater", "greater_equal", "relu_backward"), POINTWISE),
    "sigmoid": pointwise(3),  # exp, add, divide
    "sigmoid_backward": pointwise(3),
    "tanh_backward": pointwise(3),
    "silu": pointwise(4),  # a sigmoid, multiply
    "silu_backward": pointwise(6),
    "rotary": pointwise(3),  # two products and a sum
    "gelu": pointwise(8),  # cube (2), scale, add, scale, tanh, add, multiply
    "gelu_backward": pointwise(14),
    # PyTorch marks most of its elementwise operators itself; these it does not
    **dict.fromkeys(
        (
            "aten.hardtanh_backward",
            "aten.softplus_backward",
            "aten.leaky_relu_backward",
            "aten.elu_backward",
            "aten.hardswish_backward",
            "aten.hardsigmoid_backward",
            "aten.log_sigmoid_forward",
            "aten.log_sigmoid_backward",
            "aten.native_dropout_backward",
            "aten.masked_fill",
            "aten.floor_divide",
            "aten.rsub",
            "aten.lerp",
            "aten.prelu",
            "aten._prelu_kernel",
            "aten.hardswish",
            "aten.mish",
        ),
        POINTWISE,
    ),
    "aten.gelu": pointwise(8),
    "aten.gelu_backward": pointwise(14),
    "aten.sigmoid": pointwise(3),
    "aten.sigmoid_backward": pointwise(3),
    "aten.tanh_backward": pointwise(3),
    "aten.silu": pointwise(4),
    "aten.silu_backward": pointwise(6),
    "aten.native_dropout": pointwise(2),
    "aten.addcmul": pointwise(3),
    "aten.addcdiv": pointwise(3),
    "aten.addr": pointwise(2),
    "aten.glu": pointwise(4),
    "aten._thnn_fused_lstm_cell": Rule("elementwise", other=lambda c: 9 * c.outputs[0].size),
    "aten._thnn_fused_lstm_cell_backward_impl": pointwise(9),
    "aten._thnn_fused_gru_cell": Rule("elementwise", other=lambda c: 10 * c.outputs[0].size),
    "aten._thnn_fused_gru_cell_backward": pointwise(9),
    # optimizers: operations per parameter
    **dict.fromkeys(
        (
            "aten._foreach_add",
            "aten._foreach_sub",
            "aten._foreach_mul",
            "aten._foreach_div",
            "aten._foreach_sqrt",
            "aten._foreach_neg",
            "aten._foreach_pow",
            "aten._foreach_maximum",
            "aten._foreach_reciprocal",
        ),
        on_list(),
    ),
    "aten._foreach_norm": on_list(2),
    "aten._amp_foreach_non_finite_check_and_unscale": on_list(2),
    **dict.fromkeys(
        ("aten._foreach_addcmul", "aten._foreach_addcdiv", "aten._foreach_lerp"), on_list(3)
    ),
    **dict.fromkeys(("adam_step", "aten._fused_adam", "aten._fused_adamw"), update(14)),
    **dict.fromkeys(("sgd_step", "aten._fused_sgd"), update(6)),
}

REDUCTIONS: dict[str, Rule] = {
    **dict.fromkeys(("sum", "mean", "max"), reduction()),
    **dict.fromkeys(
        (
            "aten.sum",
            "aten.mean",
            "aten.max",
            "aten.min",
            "aten.amax",
            "aten.amin",
            "aten.prod",
            "aten.any",
            "aten.all",
            "aten.argmax",
            "aten.argmin",
            "aten.cumsum",
            "aten.cumprod",
            "aten.count_nonzero",
            "aten.nansum",
        ),
        reduction(),
    ),
    "aten.linalg_vector_norm": reduction(2),
    "aten.norm": reduction(2),
    **dict.fromkeys(("aten.var", "aten.std", "aten.var_mean", "aten.std_mean"), reduction(4)),
    "aten.logsumexp": reduction(4),
    **dict.fromkeys(("softmax", "aten._softmax", "aten._safe_softmax"), reduction(5)),
    **dict.fromkeys(("softmax_backward", "aten._softmax_backward_data"), reduction(4)),
    **dict.fromkeys(("log_softmax", "aten._log_softmax"), reduction(5)),
    **dict.fromkeys(("log_softmax_backward", "aten._log_softmax_backward_data"), reduction(4)),
    "cross_entropy": reduction(6),
    "cross_entropy_backward": pointwise(2),
    **dict.fromkeys(("aten.nll_loss_forward", "aten.nll_loss2d_forward"), PICKED_LOSS),
    **dict.fromkeys(("aten.nll_loss_backward", "aten.nll_loss2d_backward"), PICKED_LOSS_BACKWARD),
    "aten.mse_loss": reduction(3),
    "aten.mse_loss_backward": pointwise(3),
    **dict.fromkeys(("binary_cross_entropy", "aten.binary_cross_entropy"), reduction(7)),
    **dict.fromkeys(
        ("binary_cross_entropy_with_logits", "aten.binary_cross_entropy_with_logits"), reduction(7)
    ),
    **dict.fromkeys(
        (
            "binary_cross_entropy_backward",
            "binary_cross_entropy_with_logits_backward",
            "aten.binary_cross_entropy_backward",
        ),
        pointwise(5),
    ),
}

NORMALISATIONS: dict[str, Rule] = {
    # mean, centre, square, sum, scale, weight, bias
    **dict.fromkeys(("layer_norm", "aten.native_layer_norm"), normalisation(7)),
    "add_layer_norm": normalisation(8),  # the sum before it
    **dict.fromkeys(("batch_norm", "aten.native_batch_norm"), normalisation(7)),
    **dict.fromkeys(
        (
            "aten.native_group_norm",
            "aten.cudnn_batch_norm",
            "aten._native_batch_norm_legit",
            "aten._native_batch_norm_legit_no_training",
            "aten._batch_norm_with_update",
            "aten._batch_norm_no_update",
        ),
        normalisation(7),
    ),
    **dict.fromkeys(("rms_norm", "aten._fused_rms_norm", "aten.rms_norm"), normalisation(4)),
    **dict.fromkeys(("rms_norm_backward", "aten._fused_rms_norm_backward"), normalisation(9)),
    **dict.fromkeys(("layer_norm_backward", "aten.native_layer_norm_backward"), normalisation(12)),
    **dict.fromkeys(("batch_norm_backward", "aten.native_batch_norm_backward"), normalisation(12)),
    **dict.fromkeys(
        (
            "aten.native_group_norm_backward",
            "aten.cudnn_batch_norm_backward",
            "aten.batch_norm_backward",
        ),
        normalisation(12),
    ),
    **dict.fromkeys(("max_pool2d", "avg_pool2d", "aten.max_pool2d_with_indices"), POOLING),
    **dict.fromkeys(("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d"), POOLING),
    "aten.max_pool3d_with_indices": POOLING,
    **dict.fromkeys(("max_pool2d_backward", "avg_pool2d_backward"), UNPOOLING),
    **dict.fromkeys(
        (
            "aten.max_pool2d_with_indices_backward",
            "aten.avg_pool2d_backward",
            "aten._adaptive_avg_pool2d_backward",
        ),
        UNPOOLING_BY_SHAPE,
    ),
    **dict.fromkeys(("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d"), reduction()),
    **dict.fromkeys(("aten.upsample_nearest2d", "aten.upsample_nearest1d"), GATHER),
    "aten.upsample_bilinear2d": pointwise(7),
}

DATA_MOVEMENT: dict[str, Rule] = {
    **dict.fromkeys(("reshape", "transpose", "broadcast_to"), MOVEMENT),
    **dict.fromkeys(("getitem", "embedding"), GATHER),
    "int8_embedding": PACKED_GATHER,
    **dict.fromkeys(("concatenate", "getitem_backward", "embedding_backward"), MOVEMENT),
    **dict.fromkeys(
        (
            "aten.clone",
            "aten._to_copy",
            "aten.contiguous",
            "aten.cat",
            "aten.stack",
            "aten.repeat",
            "aten.flip",
            "aten.roll",
            "aten.constant_pad_nd",
            "aten.tril",
            "aten.triu",
            "aten.im2col",
            "aten.col2im",
            "aten.embedding_dense_backward",
            "aten.select_backward",
            "aten.slice_backward",
            "aten.slice_scatter",
            "aten.select_scatter",
            "aten.reflection_pad2d",
            "aten.to_padded_tensor",
            "aten._nested_tensor_from_mask",
            "aten._pack_padded_sequence",
            "aten._local_scalar_dense",
            "aten.one_hot",
        ),
        MOVEMENT,
    ),
    **dict.fromkeys(("aten.copy", "aten._foreach_copy"), COPY),
    **dict.fromkeys(
        ("aten.index_put", "aten._index_put_impl", "aten.index_copy", "aten.scatter"), placed()
    ),
    **dict.fromkeys(("aten.index_add", "aten.scatter_add"), placed(adds=True)),
    **dict.fromkeys(
        ("aten.embedding", "aten.index", "aten.index_select", "aten.gather", "aten.take"), GATHER
    ),
    # memory is reserved and nothing is written
    **dict.fromkeys(("aten.empty", "aten.empty_like", "aten.empty_strided"), VIEW),
    **dict.fromkeys(("aten.new_empty", "aten.new_empty_strided"), VIEW),
    "aten._nested_tensor_from_mask_left_aligned": VIEW,
    # memory is looked at in another way
    **dict.fromkeys(("aten._unsafe_view", "aten._reshape_alias", "aten.lift_fresh"), VIEW),
    **dict.fromkeys(("aten.unsafe_split", "aten.unsafe_split_with_sizes"), VIEW),
    **dict.fromkeys(
        ("profiler._record_function_enter_new", "profiler._record_function_exit"), VIEW
    ),
    **dict.fromkeys(
        (
            "aten.zeros",
            "aten.zeros_like",
            "aten.ones",
            "aten.ones_like",
            "aten.full",
            "aten.full_like",
            "aten.new_zeros",
            "aten.new_ones",
            "aten.new_full",
            "aten.fill",
            "aten.zero",
            "aten._foreach_zero",
            "aten.arange",
            "aten.linspace",
            "aten.eye",
            "aten.scalar_tensor",
            "aten.tril_indices",
        ),
        CREATION,
    ),
    **dict.fromkeys(("aten.rand", "aten.randn", "aten.randint", "aten.uniform"), RANDOM),
    **dict.fromkeys(("aten.rand_like", "aten.randn_like"), RANDOM),
    **dict.fromkeys(("aten.bernoulli", "aten.normal"), DRAWN),
}

COSTS: dict[str, Rule] = {
    **FORWARD_PRODUCTS,
    **BACKWARD_PRODUCTS,
    **ELEMENTWISE,
    **REDUCTIONS,
    **NORMALISATIONS,
    **DATA_MOVEMENT,
}
