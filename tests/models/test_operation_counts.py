"""What is no product, counted by hand: the elementary operations on each element, one by one."""

import pytest

from tinytorch.models.costs import COSTS, cost_of
from tinytorch.models.records import Call, TensorSpec

SIGMOID = "exp, add, divide"
SOFTMAX = "max, subtract it, exp, sum, divide"
LOG_SOFTMAX = "max, subtract it, exp, sum, subtract the log of it"
NORM = "sum, subtract the mean, square, sum, scale, times weight, plus bias"
# x^ = (x - mean) / deviation; gradients of weight and bias; dx = (gw - mean(gw) - x^ c) / deviation
NORM_BACKWARD = (
    "subtract the mean, scale, times gradient, sum, sum of gradient, gradient times weight, sum, "
    "times x^, sum, x^ times that and less both, subtract, scale"
)
RMS_BACKWARD = (
    "gradient times weight, times x, sum, x times that, scale the first, subtract, "
    "x scaled, times gradient, sum"
)
GELU = "square, cube, scale, add, scale, tanh, add one, times half x"
FIRST_MOMENT = "scale, scale the gradient, add"
SECOND_MOMENT = "scale, square, scale, add"
ADAM_REST = "correct, correct, root, add epsilon, divide, times rate, subtract"

OF_INPUT = {
    **dict.fromkeys(("sum", "mean", "max", "aten.argmax", "aten.cumsum", "aten.prod"), "add"),
    **dict.fromkeys(("aten.norm", "aten.linalg_vector_norm"), "square, add"),
    **dict.fromkeys(("aten.var", "aten.std", "aten.var_mean"), "add, centre, square, add"),
    "aten.logsumexp": "max, subtract it, exp, sum",
    **dict.fromkeys(("softmax", "aten._softmax", "aten._safe_softmax"), SOFTMAX),
    **dict.fromkeys(
        ("softmax_backward", "aten._softmax_backward_data"), "times y, sum, subtract, times y"
    ),
    **dict.fromkeys(("log_softmax", "aten._log_softmax"), LOG_SOFTMAX),
    **dict.fromkeys(
        ("log_softmax_backward", "aten._log_softmax_backward_data"), "sum, exp, times, subtract"
    ),
    "cross_entropy": f"{LOG_SOFTMAX}, sum of what is picked",
    "aten.mse_loss": "subtract, square, sum",
    **dict.fromkeys(
        ("binary_cross_entropy", "aten.binary_cross_entropy"),
        "log, one less, log, difference, times target, add, sum",
    ),
    **dict.fromkeys(("layer_norm", "aten.native_layer_norm", "batch_norm"), NORM),
    **dict.fromkeys(("aten.native_group_norm", "aten.cudnn_batch_norm"), NORM),
    "add_layer_norm": f"add, {NORM}",
    **dict.fromkeys(
        ("layer_norm_backward", "aten.native_layer_norm_backward", "batch_norm_backward"),
        NORM_BACKWARD,
    ),
    **dict.fromkeys(("aten._fused_rms_norm", "aten.rms_norm"), "square, sum, scale, times weight"),
    "aten._fused_rms_norm_backward": RMS_BACKWARD,
    # parameters
    **dict.fromkeys(
        ("adam_step", "aten._fused_adam", "aten._fused_adamw"),
        f"{FIRST_MOMENT}, {SECOND_MOMENT}, {ADAM_REST}",
    ),
    **dict.fromkeys(
        ("sgd_step", "aten._fused_sgd"),
        "decay, add it, scale the velocity, add, times rate, subtract",
    ),
    **dict.fromkeys(
        ("aten._foreach_add", "aten._foreach_mul", "aten._foreach_sqrt", "aten._foreach_pow"), "one"
    ),
    "aten._foreach_norm": "square, add",
    "aten._amp_foreach_non_finite_check_and_unscale": "check, times",
    **dict.fromkeys(("aten._foreach_addcmul", "aten._foreach_addcdiv"), "times, scale, add"),
    "aten._foreach_lerp": "subtract, scale, add",
}
OF_OUTPUT = {
    **dict.fromkeys(("add", "multiply", "exp", "tanh", "relu", "where", "less"), "one"),
    **dict.fromkeys(("sigmoid", "aten.sigmoid"), SIGMOID),
    **dict.fromkeys(("sigmoid_backward", "aten.sigmoid_backward"), "one less, times y, times"),
    **dict.fromkeys(("tanh_backward", "aten.tanh_backward"), "square, one less, times"),
    **dict.fromkeys(("gelu", "aten.gelu"), GELU),
    "aten.silu": f"{SIGMOID}, times x",
    "aten.glu": f"{SIGMOID}, times the other half",
    "aten.native_dropout": "times mask, scale",
    **dict.fromkeys(("aten.addcmul", "aten.addcdiv"), "times, scale, add"),
    "aten.addr": "times, add",
    "cross_entropy_backward": "less the target, scale",
    "aten.mse_loss_backward": "subtract, scale, times",
    "binary_cross_entropy_backward": "less the target, one less, times p, divide, times",
    "aten.upsample_bilinear2d": "four products, times, times, times, add, add, add",
    # four gates, two products and their sum, tanh, one more product
    "aten._thnn_fused_lstm_cell": "i, f, g, o, f c, i g, add, tanh, times o",
    # sums of both sides for three gates, one of them scaled; three functions; the mixture
    "aten._thnn_fused_gru_cell": "r, z, add, add, r h, add, tanh, subtract, times z, add",
}


def call(kind, inputs, output):
    """Give a call with distinct sizes of what comes in and out."""
    first, last = (TensorSpec(shape, "float32", 4) for shape in (inputs, output))
    return Call(kind, (first,), (last, last), {})


@pytest.mark.parametrize("kind", OF_INPUT)
def test_an_element_that_comes_in_costs_its_operations(kind):
    cost = cost_of(call(kind, (6, 35), (6, 1)))
    assert cost.other_flops == 6 * 35 * len(OF_INPUT[kind].split(", "))
    assert cost.macs == 0


@pytest.mark.parametrize("kind", OF_OUTPUT)
def test_an_element_that_comes_out_costs_its_operations(kind):
    cost = cost_of(call(kind, (2, 3), (6, 35)))
    assert cost.other_flops == 6 * 35 * len(OF_OUTPUT[kind].split(", "))
    assert cost.macs == 0


def test_pooling_looks_at_a_window_for_each_output():
    for kind, settings, window in (
        ("max_pool2d", {"kernel": (2, 3)}, 6),
        ("aten.avg_pool2d", {"kernel_size": (3,)}, 9),
        ("aten.avg_pool3d", {"kernel_size": (2,)}, 8),
    ):
        made = Call(kind, (TensorSpec((1, 1, 8, 8), "float32", 256),), (), settings)
        made = Call(kind, made.inputs, (TensorSpec((1, 1, 4, 5), "float32", 80),), settings)
        assert cost_of(made).other_flops == 20 * window


def test_a_list_of_tensors_counts_all_of_its_elements():
    some = tuple(TensorSpec((size,), "float32", 4 * size) for size in (3, 5, 7))
    for kind, each in (("aten._foreach_add", 1), ("aten._foreach_norm", 2)):
        assert cost_of(Call(kind, (some,), some, {})).other_flops == 15 * each


@pytest.mark.parametrize("kind", ["int8_linear_weight_only", "int8_conv2d_weight_only"])
@pytest.mark.parametrize("bias", [None, TensorSpec((5,), "float32", 20)])
@pytest.mark.parametrize("sums", [TensorSpec((0,), "float32", 0), TensorSpec((9,), "int32", 36)])
def test_of_an_int8_product_of_weights_alone_the_sums_are_not_read(kind, bias, sums):
    sizes = {"x": ((2, 3, 4, 4), 384), "values": ((3, 5), 15), "scales": ((5,), 20)}
    tensors = [TensorSpec(shape, "float32", nbytes) for shape, nbytes in sizes.values()]
    rule = COSTS[kind]
    assert rule.read(Call(kind, (*tensors, sums, bias), (), {})) == 384 + 15 + 20 + (
        0 if bias is None else 20
    )


def test_the_largest_result_counts():
    small, large = (TensorSpec((size,), "float32", 4 * size) for size in (3, 50))
    assert cost_of(Call("exp", (small,), (small, large), {})).other_flops == 50


def test_what_is_added_to_rows_reads_them_too():
    target, index, source = (
        TensorSpec(shape, kind, nbytes)
        for shape, kind, nbytes in (
            ((10, 4), "float32", 160),
            ((2,), "int64", 16),
            ((2, 4), "float32", 32),
        )
    )
    added, copied = (
        cost_of(Call(kind, (target, index, source), (), {}, changed=(0,)))
        for kind in ("aten.index_add", "aten.index_copy")
    )
    assert added.bytes_read - copied.bytes_read == 32
    assert added.bytes_written == copied.bytes_written == 32
