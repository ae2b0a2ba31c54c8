"""The cost table: what each kind of operation costs, for both frameworks, on one page.

Kinds without a prefix are kernels of ``tinytorch.core``; ``aten.`` and others are PyTorch's
operators, without their overload and without the underscore of in-place variants.

Conventions. The headline is the multiply-accumulates of contractions; a FLOP count is twice that.
Everything else that computes is listed separately as `other_flops`, where each elementary function
(also an exponential) counts once per element. Bytes are those that are read and written, each once;
:mod:`tinytorch.adapters.cost_rules` says how. A kind that is not in the table, and that its
framework does not mark as elementwise, has no cost: it is named in ``not_counted``.
"""

from __future__ import annotations

from tinytorch.adapters import contractions as of
from tinytorch.adapters.cost_rules import (
    COPY,
    CREATION,
    DRAWN,
    GATHER,
    MOVEMENT,
    PACKED_GATHER,
    PICKED_LOSS,
    PICKED_LOSS_BACKWARD,
    POINTWISE,
    POOLING,
    RANDOM,
    UNPOOLING,
    UNPOOLING_BY_SHAPE,
    VIEW,
    Rule,
    all_but,
    contraction,
    normalisation,
    on_list,
    placed,
    pointwise,
    reduction,
    update,
)
from tinytorch.adapters.records import Call, Cost

__all__ = ["COSTS", "POINTWISE", "VIEW", "Rule", "cost_of"]


def cost_of(call: Call, rule: Rule | None = None) -> Cost | None:
    """Give the cost of a call, or None when there is no formula for its kind."""
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
    **dict.fromkeys(("aten._fused_rms_norm", "aten.rms_norm"), normalisation(4)),
    "aten._fused_rms_norm_backward": normalisation(9),
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
    **dict.fromkeys(("codebook_lookup", "codebook_lookup_backward"), MOVEMENT),
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
