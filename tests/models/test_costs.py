import dataclasses
import math

import numpy as np
import pytest
from kernel_calls import kernel_calls
from parts import require_part

from tinytorch.core import tensor as core
from tinytorch.core.activations import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from tinytorch.core.attention import scaled_dot_product_attention
from tinytorch.core.dispatch import run
from tinytorch.core.embeddings import Embedding
from tinytorch.core.kernels import BACKENDS
from tinytorch.core.kernels.packing import pack_int8
from tinytorch.core.layers import Linear
from tinytorch.core.spatial import AvgPool2d, Conv2d, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import LayerNorm
from tinytorch.models.core import CoreAdapter
from tinytorch.models.costs import COSTS, POINTWISE, cost_of
from tinytorch.models.records import Call, Cost, TensorSpec

KINDS = sorted(BACKENDS["reference"].kernels)
CALLS = kernel_calls(np.float32)


def costs_of(step):
    """Give kind and cost of every kernel that a function runs."""
    recording = CoreAdapter().record(lambda: None, step, device="cpu")
    return [(record.kind, record.cost) for record in recording.operations]


def torch_costs_of(step):
    torch = require_part("torch")
    from tinytorch.models.pytorch import TorchAdapter

    with torch.no_grad():
        recording = TorchAdapter().record(torch.nn.Identity(), step, device="cpu")
    return [(record.kind, record.cost) for record in recording.operations]


def total(costs):
    """Add up products and other work."""
    found = [cost for _, cost in costs]
    assert None not in found
    return sum(cost.macs for cost in found), sum(cost.other_flops for cost in found)


def spec(*shape, dtype="float32"):
    return TensorSpec(shape, dtype, 4 * math.prod(shape))


# ---------------------------------------------------------------- the kernels of our own


@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_has_a_row_and_a_cost_that_makes_sense(kind):
    assert kind in COSTS
    for call in CALLS[kind]:
        copy = call.copied("contiguous")
        ((_, cost),) = costs_of(lambda copy=copy: run(kind, *copy.arguments, **copy.settings))
        counts = {k: v for k, v in dataclasses.asdict(cost).items() if k != "family"}
        assert all(type(count) is int and count >= 0 for count in counts.values()), counts
        assert cost.causal_macs <= cost.macs


def test_the_table_has_no_row_of_ours_without_a_kernel():
    ours = {kind for kind in COSTS if "." not in kind}
    assert ours - set(KINDS) == {"flex_attention"}  # of PyTorch, though it has no prefix


def test_an_unknown_kind_has_no_cost():
    assert cost_of(Call("frobnicate", (spec(3),), (spec(3),), {})) is None


def test_a_rule_can_be_given_for_a_kind_that_is_not_in_the_table():
    cost = cost_of(Call("frobnicate", (spec(3),), (spec(3),), {}), POINTWISE)
    assert (cost.family, cost.other_flops) == ("elementwise", 3)


# ---------------------------------------------------------------- twins

IMAGES = (2, 3, 8, 10)
TWINS = {
    "relu": ((4, 5), ReLU(), lambda F, x: F.relu(x)),
    "sigmoid": ((4, 5), Sigmoid(), lambda F, x: x.sigmoid()),
    "tanh": ((4, 5), Tanh(), lambda F, x: x.tanh()),
    "gelu": ((4, 5), GELU(), lambda F, x: F.gelu(x, approximate="tanh")),
    "silu": ((4, 5), SiLU(), lambda F, x: F.silu(x)),
    "softmax": ((4, 5), Softmax(), lambda F, x: x.softmax(-1)),
    "log_softmax": ((4, 5), LogSoftmax(), lambda F, x: x.log_softmax(-1)),
    "layer_norm": ((4, 5), LayerNorm(5), lambda F, x: F.layer_norm(x, (5,))),
    "exp": ((4, 5), lambda x: x.exp(), lambda F, x: x.exp()),
    "square": ((4, 5), lambda x: x**2, lambda F, x: x**2),
    "sum": ((4, 5), lambda x: x.sum(), lambda F, x: x.sum()),
    "mean": ((4, 5), lambda x: x.mean(axis=0), lambda F, x: x.mean(0)),
    "max": ((4, 5), lambda x: x.max(axis=1), lambda F, x: x.amax(1)),
    "broadcast add": ((4, 5), lambda x: x + x[0], lambda F, x: x + x[0]),
    "where": ((4, 5), lambda x: core.where(x > 0, x, 0.0), lambda F, x: x.where(x > 0, 0.0)),
    "matmul": ((4, 5), lambda x: x @ x.T, lambda F, x: x @ x.T),
    "linear": ((3, 4, 5), Linear(5, 7, rng=0), lambda F, x: F.linear(x, one(7, 5), one(7))),
    "conv": (
        IMAGES,
        Conv2d(3, 6, 3, stride=2, padding=1, rng=0),
        lambda F, x: F.conv2d(x, one(6, 3, 3, 3), one(6), stride=2, padding=1),
    ),
    "max pool": (IMAGES, MaxPool2d(2), lambda F, x: F.max_pool2d(x, 2)),
    "max pool, one side": (IMAGES, MaxPool2d(2), lambda F, x: F.max_pool2d(x, [2])),
    "max pool, no batch": (
        IMAGES[1:],
        lambda x: MaxPool2d(2)(x.reshape(1, *x.shape)),
        lambda F, x: F.max_pool2d(x, [2]),
    ),
    "average pool": (IMAGES, AvgPool2d(3, 2), lambda F, x: F.avg_pool2d(x, 3, 2)),
    "attention": (
        (2, 3, 6, 4),
        lambda x: scaled_dot_product_attention(x, x, x)[0],
        lambda F, x: F.scaled_dot_product_attention(x, x, x),
    ),
}


def one(*shape):
    return require_part("torch").ones(*shape)


@pytest.mark.parametrize("name", TWINS)
def test_both_frameworks_count_alike(name):
    torch = require_part("torch")
    shape, ours, theirs = TWINS[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    counted = total(costs_of(lambda: ours(Tensor(x))))
    functional, twin = torch.nn.functional, torch.from_numpy(x)
    assert counted == total(torch_costs_of(lambda: theirs(functional, twin)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("sigmoid_backward", "aten.sigmoid_backward"),
        ("tanh_backward", "aten.tanh_backward"),
        ("gelu_backward", "aten.gelu_backward"),
        ("silu_backward", "aten.silu_backward"),
        ("rms_norm", "aten._fused_rms_norm"),
        ("rms_norm_backward", "aten._fused_rms_norm_backward"),
        ("softmax_backward", "aten._softmax_backward_data"),
        ("log_softmax_backward", "aten._log_softmax_backward_data"),
        ("layer_norm_backward", "aten.native_layer_norm_backward"),
        ("batch_norm_backward", "aten.native_batch_norm_backward"),
        ("max_pool2d_backward", "aten.max_pool2d_with_indices_backward"),
        ("avg_pool2d_backward", "aten.avg_pool2d_backward"),
        ("binary_cross_entropy", "aten.binary_cross_entropy"),
        ("binary_cross_entropy_backward", "aten.binary_cross_entropy_backward"),
        ("binary_cross_entropy_with_logits", "aten.binary_cross_entropy_with_logits"),
        ("adam_step", "aten._fused_adam"),
        ("sgd_step", "aten._fused_sgd"),
    ],
)
def test_gradients_losses_and_updates_count_alike(ours, theirs):
    arguments = (spec(4, 5),) * 4
    counted = cost_of(Call(ours, arguments, (spec(4, 5),), {}))
    lists = (
        tuple((each,) for each in arguments)
        if theirs.startswith(("aten._fused_adam", "aten._fused_sgd"))
        else arguments
    )
    assert counted.other_flops == cost_of(Call(theirs, lists, (spec(4, 5),), {})).other_flops


# ---------------------------------------------------------------- bytes


def moved(costs, kind):
    (cost,) = [cost for each, cost in costs if each == kind]
    return cost.bytes_read, cost.bytes_written


def test_a_product_reads_both_factors_and_writes_the_result():
    a, b = np.ones((3, 5), np.float32), np.ones((5, 7), np.float32)
    bytes_moved = (4 * (3 * 5 + 5 * 7), 4 * 3 * 7)
    assert moved(costs_of(lambda: run("matmul", a, b)), "matmul") == bytes_moved
    assert moved(torch_costs_of(lambda: one(3, 5) @ one(5, 7)), "aten.mm") == bytes_moved


@pytest.mark.parametrize(
    ("kind", "columns", "settings"),
    [
        ("int8_linear_weight_only", 4 * 7, {}),  # scales
        ("int8_linear_dynamic", 8 * 7, {}),  # scales and sums
        ("int8_linear_static", 8 * 7, {"scale": 0.1}),
    ],
)
def test_an_int8_product_reads_one_byte_for_each_weight(kind, columns, settings):
    packed = pack_int8(np.ones((8, 7), np.int8), np.ones(7, np.float32))
    x, bias = np.ones((3, 8), np.float32), np.ones(7, np.float32)
    ((_, cost),) = costs_of(lambda: run(kind, x, *packed.arrays, bias, **settings))
    assert cost.macs == 3 * 8 * 7
    assert packed.values.nbytes == 8 * 7 + 36  # the last register reads further
    assert cost.bytes_read == x.nbytes + packed.values.nbytes + columns + bias.nbytes
    assert cost.bytes_written == 4 * 3 * 7


@pytest.mark.parametrize(
    ("kind", "columns", "settings"),
    [
        ("int8_conv2d_weight_only", 4 * 6, {}),  # scales
        ("int8_conv2d_dynamic", 8 * 6, {}),  # scales and sums
        ("int8_conv2d_static", 8 * 6, {"scale": 0.1}),
    ],
)
def test_an_int8_convolution_costs_the_products_of_its_patches(kind, columns, settings):
    patch = 2 * 3 * 2  # two channels of a group, and the kernel
    packed = pack_int8(np.ones((patch, 6), np.int8), np.ones(6, np.float32))
    x, bias = np.ones((5, 4, 7, 9), np.float32), np.ones(6, np.float32)
    window = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 1), "groups": 2}
    ((_, cost),) = costs_of(
        lambda: run(kind, x, *packed.arrays, bias, kernel_size=(3, 2), **window, **settings)
    )
    results = 5 * 6 * 4 * 8
    assert (cost.family, cost.macs) == ("contraction", results * patch)
    assert packed.values.nbytes == patch * 6 + 40  # the last register reads further
    assert cost.bytes_read == x.nbytes + packed.values.nbytes + columns + bias.nbytes
    assert cost.bytes_written == 4 * results


def test_an_int8_convolution_is_of_one_group_unless_told():
    packed = pack_int8(np.ones((8, 3), np.int8), np.ones(3, np.float32))
    window = {"kernel_size": (2, 2), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    x = np.ones((1, 2, 3, 3), np.float32)
    ((_, cost),) = costs_of(lambda: run("int8_conv2d_dynamic", x, *packed.arrays, **window))
    assert cost.macs == 3 * 4 * 8


@pytest.mark.parametrize(("ids", "read"), [([[3, 1, 3]], 3 * 8), ([2] * 2000, 8 * 1000 + 32)])
def test_an_int8_embedding_reads_a_byte_for_each_number_and_a_scale_for_each_row(ids, read):
    packed = pack_int8(np.ones((8, 1000), np.int8), np.ones(1000, np.float32))
    ids = np.array(ids)
    ((_, cost),) = costs_of(
        lambda: run("int8_embedding", ids, packed.values, packed.scales, width=8)
    )
    scales = 4 * min(ids.size, 1000)
    assert (cost.bytes_read, cost.bytes_written) == (read + scales + ids.nbytes, 4 * 8 * ids.size)
    assert (cost.family, cost.macs, cost.other_flops) == ("movement", 0, 8 * ids.size)


def test_an_embedding_reads_the_rows_that_it_gives_and_not_the_table():
    table, ids = Embedding(1000, 8, rng=0), np.array([[3, 1, 3]])
    rows = 3 * 8 * 4
    bytes_moved = (rows + ids.nbytes, rows)
    assert moved(costs_of(lambda: table(Tensor(ids))), "embedding") == bytes_moved
    torch = require_part("torch")
    theirs, their_ids = torch.nn.Embedding(1000, 8), torch.from_numpy(ids)
    assert moved(torch_costs_of(lambda: theirs(their_ids)), "aten.embedding") == bytes_moved


def test_the_gradient_of_an_embedding_writes_the_whole_table():
    rows = np.ones((3, 8), np.float32)
    costs = costs_of(lambda: run("embedding_backward", rows, np.array([3, 1, 3]), count=1000))
    assert moved(costs, "embedding_backward") == (rows.nbytes + 3 * 8, 1000 * 8 * 4)


VIEWS = {
    "reshape": (lambda x: x.reshape(5, 4), lambda x: x.reshape(5, 4)),
    "transpose": (lambda x: x.T, lambda x: x.T),
    "slice": (lambda x: x[1:, ::2], lambda x: x[1:, ::2]),
    "broadcast": (lambda x: x.broadcast_to(3, 4, 5), lambda x: x.expand(3, 4, 5)),
    "in place": (lambda x: x.reshape(1, 4, 5), lambda x: x.unsqueeze_(0).transpose_(0, 1)),
    "detached": (lambda x: x.reshape(20), lambda x: x.detach()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_free(name):
    ours, theirs = VIEWS[name]
    x = np.ones((4, 5), np.float32)
    twin = one(4, 5)
    costs = costs_of(lambda: ours(Tensor(x))) + torch_costs_of(lambda: theirs(twin))
    assert len(costs) >= 2
    assert all(cost == Cost("view") for _, cost in costs)


def test_a_reshape_that_must_copy_moves_what_it_copies():
    x = Tensor(np.ones((4, 5), np.float32))
    costs = costs_of(lambda: x.T.reshape(20))
    assert moved(costs, "reshape") == (80, 80)


def test_reserving_memory_is_free_and_filling_it_is_not():
    torch = require_part("torch")
    costs = dict(torch_costs_of(lambda: (torch.empty(8), torch.zeros(8))))
    assert costs["aten.empty"] == Cost("view")
    assert (costs["aten.zeros"].bytes_read, costs["aten.zeros"].bytes_written) == (0, 32)


def test_an_operation_in_place_reads_and_writes():
    x, y = one(4, 5), one(4, 5)
    assert moved(torch_costs_of(lambda: x.add_(y)), "aten.add") == (160, 80)
    assert moved(torch_costs_of(lambda: x.relu_()), "aten.relu") == (80, 80)


def test_what_only_receives_a_result_is_not_read():
    torch = require_part("torch")
    x, y, out = one(4, 5), one(4, 5), torch.empty(4, 5)
    assert moved(torch_costs_of(lambda: torch.mul(x, y, out=out)), "aten.mul") == (160, 80)


def test_what_is_expanded_is_read_once():
    x, row = np.ones((4, 5), np.float32), np.ones((1, 5), np.float32)
    wide = np.broadcast_to(row, (4, 5))
    assert moved(costs_of(lambda: run("multiply", x, wide)), "multiply") == (80 + 20, 80)
    costs = torch_costs_of(lambda: one(4, 5) * one(1, 5).expand(4, 5))
    assert moved(costs, "aten.mul") == (80 + 20, 80)


def test_an_optimizer_step_writes_all_but_the_gradient():
    values = [np.ones(10, np.float32) for _ in range(4)]
    adam = {"step": 1, "lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
    costs = costs_of(lambda: run("adam_step", *values, **adam, decoupled=False))
    assert moved(costs, "adam_step") == (160, 120)
    sgd = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    costs = costs_of(lambda: run("sgd_step", values[0], values[1], None, **sgd))
    assert moved(costs, "sgd_step") == (80, 40)


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize("call", CALLS["attention"], ids=lambda call: str(call.arguments[0].shape))
def test_causal_products_are_those_of_the_weights_that_are_not_masked(call):
    query, key, value, bias = call.arguments
    ((_, cost),) = costs_of(lambda: run("attention", query, key, value, bias, **call.settings))
    # random numbers give no weight of zero but for the masked ones; a bias is not part of "causal"
    _, weights = run("attention", query, key, value, None, **call.settings)
    assert cost.causal_macs == np.count_nonzero(weights) * (query.shape[-1] + value.shape[-1])


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3)])
def test_causal_products_of_pytorch_are_those_of_its_triangle(queries, keys):
    torch = require_part("torch")
    q, k = torch.randn(2, 4, queries, 8), torch.randn(2, 4, keys, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    costs = dict(torch_costs_of(lambda: attend(q, k, k, is_causal=True)))
    cost = costs["aten._scaled_dot_product_flash_attention_for_cpu"]
    assert cost.macs == 2 * 4 * queries * keys * 16
    assert cost.causal_macs == 2 * 4 * np.tri(queries, keys).sum() * 16


def test_without_a_mask_all_products_are_visible():
    x = np.ones((2, 5, 4), np.float32)
    settings = {"scale": 0.5, "causal": False, "keep_weights": False}
    ((_, cost),) = costs_of(lambda: run("attention", x, x, x, None, **settings))
    assert cost.causal_macs == cost.macs == 2 * 5 * 5 * 8


def test_a_fused_backward_pass_computes_the_scores_again():
    torch = require_part("torch")
    from tinytorch.models.pytorch import TorchAdapter

    q, k = (torch.randn(2, 4, n, 8, requires_grad=True) for n in (5, 7))
    attend = torch.nn.functional.scaled_dot_product_attention
    recording = TorchAdapter().record(
        torch.nn.Identity(), lambda: attend(q, k, k, is_causal=True).sum().backward(), device="cpu"
    )
    (cost,) = [
        record.cost for record in recording.operations if record.phase == "backward" and record.macs
    ]
    assert cost.macs == 2 * (2 * 4 * 5 * 7 * 16)
    assert cost.recomputed_macs == 2 * 4 * 5 * 7 * 8
    assert cost.causal_macs == 2 * (2 * 4 * np.tri(5, 7).sum() * 16)


@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_a_packed_backward_pass_computes_the_scores_again(name):
    query, key = spec(12, 3, 8), spec(15, 3, 8)  # tokens, heads, width
    lengths = ((5, 9), (7, 6))
    names = {"flash": "cum_seq", "efficient": "cu_seqlens"}
    starts = {f"{names[name]}_q": (0, 5, 12), f"{names[name]}_k": (0, 9, 15)}
    causal = {"flash": {"is_causal": True}, "efficient": {"custom_mask_type": 1}}[name]
    call = Call(
        f"aten._{name}_attention_backward",
        (query, query, key, key),
        (query, key, key),
        {**starts, **causal},
    )
    cost = cost_of(call)
    assert cost.macs == 2 * 3 * 16 * sum(q * k for q, k in lengths)
    assert cost.recomputed_macs == 3 * 8 * sum(q * k for q, k in lengths)
    assert cost.causal_macs == 2 * 3 * 16 * sum(np.tri(q, k).sum() for q, k in lengths)
