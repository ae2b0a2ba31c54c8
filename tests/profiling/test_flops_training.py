"""Forward and backward. A product C = A B has two gradients, dC B^T and A^T dC, which cost what
it costs; the one of a factor that needs none is not computed.
"""

import numpy as np
import pytest
from flop_cases import ARCHITECTURES, as_model, mixtral, normal, tokens
from flop_formulas import (
    attention,
    attention_layer,
    contraction,
    convolution,
    feed_forward,
    recurrent,
    transposed_convolution,
)
from parts import require_part

from tinytorch import Tensor, load_workload
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.spatial import Conv2d
from tinytorch.core.transformers import GPT
from tinytorch.profiling.flops import count_flops

torch = require_part("torch")
nn, F = torch.nn, torch.nn.functional


def trained(model, *inputs, **options):
    return count_flops(model, *inputs, backward=True, **options)


def free(*shape):
    """Give an input that wants a gradient."""
    return normal(*shape).requires_grad_()


def frozen(module):
    return module.requires_grad_(False)


# Linear layers

FIRST, SECOND, THIRD = (contraction(3, *sizes) for sizes in ((7, 9), (9, 5), (5, 11)))


def stack():
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 11))


def test_the_first_layer_has_no_gradient_for_its_input():
    assert trained(stack(), normal(3, 7)) == 2 * FIRST + 3 * SECOND + 3 * THIRD


def test_an_input_that_wants_a_gradient_gets_one():
    assert trained(stack(), free(3, 7)) == 3 * (FIRST + SECOND + THIRD)


def test_below_the_lowest_trained_layer_nothing_runs_backward():
    model = stack()
    frozen(model[0])
    assert trained(model, normal(3, 7)) == FIRST + 2 * SECOND + 3 * THIRD


def test_a_frozen_layer_in_the_middle_only_hands_gradients_on():
    model = stack()
    frozen(model[2])
    assert trained(model, normal(3, 7)) == 2 * FIRST + 2 * SECOND + 3 * THIRD


def test_a_trained_bias_on_top_of_frozen_weights_costs_no_product():
    model = frozen(stack())
    model[0].bias.requires_grad_(True)
    assert trained(model, normal(3, 7)) == FIRST + 2 * SECOND + 2 * THIRD


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)], ids=str)
def test_rows_in_any_arrangement_cost_the_same(leading):
    assert trained(nn.Linear(7, 11), free(*leading, 7)) == 3 * contraction(*leading, 7, 11)


def test_every_use_of_a_shared_layer_has_its_gradients():
    layer, once = nn.Linear(7, 7), contraction(5, 7, 7)
    assert trained(nn.Sequential(layer, nn.ReLU(), layer), normal(5, 7)) == 2 * once + 3 * once


def test_a_tied_head_is_trained_as_if_it_were_not():
    embedding = nn.Embedding(13, 7)
    model = as_model(lambda ids: F.linear(embedding(ids), embedding.weight))
    model.embedding = embedding
    assert trained(model, tokens(13, 2, 5)) == 3 * contraction(2, 5, 7, 13)


# (shapes, all products). An outer product accumulates nothing: it is a contraction only where
# PyTorch runs it as a matrix product with an inner axis of one.
PRODUCTS = {
    "matrix @ matrix": ([(5, 7), (7, 11)], 3 * contraction(5, 7, 11)),
    "batch @ batch": ([(3, 5, 7), (3, 7, 11)], 3 * contraction(3, 5, 7, 11)),
    "batch @ matrix": ([(3, 5, 7), (7, 11)], 3 * contraction(3, 5, 7, 11)),
    "matrix @ batch": ([(5, 7), (3, 7, 11)], 3 * contraction(3, 5, 7, 11)),
    "both broadcast": ([(3, 1, 5, 7), (2, 7, 11)], 3 * contraction(3, 2, 5, 7, 11)),
    "vector @ matrix": ([(7,), (7, 11)], 3 * contraction(7, 11)),
    "matrix @ vector, outer product": ([(5, 7), (7,)], 2 * contraction(5, 7)),
    "vector @ vector, scaled vectors": ([(7,), (7,)], contraction(7)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_both_factors_of_a_product_have_a_gradient(name):
    shapes, truth = PRODUCTS[name]
    model = as_model(lambda x, y: x @ y)
    assert trained(model, *(free(*shape) for shape in shapes)) == truth


def test_the_factor_without_gradient_costs_nothing():
    model = as_model(lambda x, y: x @ y)
    assert trained(model, normal(5, 7), free(7, 11)) == 2 * contraction(5, 7, 11)


@pytest.mark.parametrize(
    ("equation", "shapes", "once"),
    [
        ("bqhd,bkhd->bhqk", [(3, 5, 2, 7), (3, 11, 2, 7)], contraction(3, 5, 2, 7, 11)),
        ("bi,oi->bo", [(3, 7), (11, 7)], contraction(3, 7, 11)),
        ("bi,bj->bij", [(3, 5), (3, 7)], 0),
    ],
)
def test_einsum_has_the_gradients_of_its_contraction(equation, shapes, once):
    model = as_model(lambda *operands: torch.einsum(equation, *operands))
    assert trained(model, *(free(*shape) for shape in shapes)) == 3 * once


def test_every_factor_of_a_bilinear_layer_has_a_gradient():
    """Each is an elementwise product followed by one contraction over all four indices."""
    layer, once = nn.Bilinear(5, 7, 11), contraction(3, 11, 5, 7)
    forward = once + contraction(3, 11, 7)
    assert trained(layer, normal(3, 5), normal(3, 7)) == forward + once
    assert trained(layer, free(3, 5), free(3, 7)) == forward + 3 * once


# Convolutions

CONVOLUTIONS = {
    "plain": (nn.Conv2d(4, 6, 3, padding=1), convolution(2, (6, 4), (3, 3), (9, 11))),
    "stride and dilation": (
        nn.Conv2d(4, 6, 3, stride=2, dilation=2),
        convolution(2, (6, 4), (3, 3), (3, 4)),
    ),
    "groups": (nn.Conv2d(4, 6, 3, groups=2), convolution(2, (6, 2), (3, 3), (7, 9))),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), convolution(2, (4, 1), (3, 3), (7, 9))),
    "1x1": (nn.Conv2d(4, 6, 1), convolution(2, (6, 4), (1, 1), (9, 11))),
    "transposed": (
        nn.ConvTranspose2d(4, 6, 3, stride=2),
        transposed_convolution(2, (4, 6), (3, 3), (9, 11)),
    ),
    "transposed, groups": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2),
        transposed_convolution(2, (4, 3), (3, 3), (9, 11)),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_has_a_gradient_for_its_weight_and_one_for_its_input(name):
    layer, once = CONVOLUTIONS[name]
    assert trained(layer, normal(2, 4, 9, 11)) == 2 * once
    assert trained(layer, free(2, 4, 9, 11)) == 3 * once


def test_a_frozen_convolution_only_hands_gradients_on():
    layer, once = nn.Conv1d(4, 6, 3), convolution(2, (6, 4), (3,), (7,))
    assert trained(frozen(layer), free(2, 4, 9)) == 2 * once


# Attention: each of the two products has two gradients. A fused kernel computes the scores once
# more; that is recomputation, and does not count.

ATTENTION = {
    "plain": (6, {}),
    "causal": (6, {"is_causal": True}),
    "mask": (6, {"attn_mask": normal(5, 7)}),
    "grouped queries": (2, {"enable_gqa": True}),
}


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_has_four_products_backward_with_every_kernel(name, backend):
    key_heads, options = ATTENTION[name]
    inputs = free(2, 6, 5, 8), free(2, key_heads, 7, 8), free(2, key_heads, 7, 8)
    model = as_model(F.scaled_dot_product_attention)
    with nn.attention.sdpa_kernel(getattr(nn.attention.SDPBackend, backend)):
        assert trained(model, *inputs, **options) == 3 * attention(2, 6, 5, 7, width=8)


def test_attention_by_hand_has_four_products_backward():
    model = as_model(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    inputs = free(2, 6, 5, 8), free(2, 6, 7, 8), free(2, 6, 7, 8)
    assert trained(model, *inputs) == 3 * attention(2, 6, 5, 7, width=8)


ENTRANCE = 3 * contraction(2, 7, 24, 24)  # the projections of the input


@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_multi_head_attention_trains_the_same_on_every_path(training, need_weights):
    layer = nn.MultiheadAttention(24, 4, batch_first=True).train(training)
    once, x = attention_layer(2, 7, 7, 24, heads=4), normal(2, 7, 24)
    assert trained(layer, x, x, x, need_weights=need_weights) == 3 * once - ENTRANCE


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_an_encoder_layer_trains_the_same_in_both_modes(training):
    layer = nn.TransformerEncoderLayer(24, 4, 52, batch_first=True).train(training)
    once = attention_layer(2, 7, 7, 24, heads=4) + feed_forward(14, 24, 52)
    assert trained(layer, normal(2, 7, 24)) == 3 * once - ENTRANCE


# Recurrent layers: the first state is a constant, so that its step has no gradient to hand on.


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_layer_hands_gradients_back_through_all_steps_but_the_first(kind, gates):
    time, batch, features, hidden = 5, 3, 7, 11
    forward = recurrent(time * batch, features, hidden, gates=gates)
    through_time = contraction((time - 1) * batch, gates * hidden, hidden)
    with torch.backends.mkldnn.flags(enabled=False):
        counted = trained(getattr(nn, kind)(features, hidden), normal(time, batch, features))
    assert counted == 2 * forward + through_time


def test_upper_recurrent_layers_have_a_gradient_for_their_input():
    time, batch, features, hidden = 5, 3, 7, 11
    forward = recurrent(time * batch, features, hidden, gates=3, layers=2, directions=2)
    through_time = 4 * contraction((time - 1) * batch, 3 * hidden, hidden)
    between = 2 * contraction(time * batch, 3 * hidden, 2 * hidden)
    layer = nn.GRU(features, hidden, num_layers=2, bidirectional=True)
    assert trained(layer, normal(time, batch, features)) == 2 * forward + through_time + between


class ProductCounter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts what matrix products really compute, from the shapes of their factors alone."""

    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        factors = {"aten::mm": args[:2], "aten::addmm": args[1:3]}.get(func._schema.name)
        if factors:
            self.flops += contraction(factors[0].shape[0], *factors[1].shape)
        return func(*args, **(kwargs or {}))


def by_hand(layers, x, states):
    """Compute an LSTM step by step, out of linear layers: (by input, by state) per layer."""
    for (by_input, by_state), (h, c) in zip(layers, states, strict=True):
        outputs = []
        for step in x:
            i, f, g, o = (by_input(step) + by_state(h)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        x = torch.stack(outputs)
    return x


@pytest.mark.parametrize("is_fused", [True, False], ids=["oneDNN", "native"])
@pytest.mark.parametrize("wants_state", [False, True], ids=["constant state", "state"])
@pytest.mark.parametrize("wants_input", [False, True], ids=["constant input", "input"])
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
def test_an_lstm_trains_what_one_out_of_linear_layers_trains(wants_input, wants_state, is_fused):
    x = normal(5, 3, 7).requires_grad_(wants_input)
    h, c = (normal(2, 3, 11).requires_grad_(wants_state) for _ in range(2))
    layers = [(nn.Linear(width, 44), nn.Linear(11, 44)) for width in (7, 11)]
    with ProductCounter() as counter:
        by_hand(layers, x, zip(h, c, strict=True)).sum().backward()
    with torch.backends.mkldnn.flags(enabled=is_fused):
        assert trained(nn.LSTM(7, 11, num_layers=2), x, (h, c)) == counter.flops


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
def test_recurrent_layers_train_the_same_with_and_without_onednn(kind):
    layer = getattr(nn, kind)(7, 11, num_layers=2, bidirectional=True)
    forward = count_flops(layer, normal(5, 3, 7))
    counted = trained(layer, normal(5, 3, 7))
    with torch.backends.mkldnn.flags(enabled=False):
        assert trained(layer, normal(5, 3, 7)) == counted
    assert 2 * forward < counted < 3 * forward


def test_packed_sequences_train_their_real_steps():
    forward = recurrent(6 + 4 + 2, 7, 11, gates=3)
    packed = nn.utils.rnn.pack_padded_sequence(normal(6, 3, 7), [6, 4, 2])
    through_time = contraction(5 + 3 + 1, 3 * 11, 11)
    assert trained(nn.GRU(7, 11), packed) == 2 * forward + through_time


# Whole models


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_training_a_model_costs_three_forward_passes_less_what_its_input_spares(name):
    case = ARCHITECTURES[name]()
    assert trained(case.model, *case.inputs, **case.options) == case.training_flops


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_experts_train_on_the_tokens_that_chose_them(experts):
    case = mixtral("sdpa", experts)
    assert trained(case.model, *case.inputs) == case.training_flops


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_a_loss_among_the_outputs_is_the_loss(attn):
    case = ARCHITECTURES[f"gpt2-{attn}"]()
    assert trained(case.model, *case.inputs, labels=case.inputs[0]) == case.training_flops


# Recomputation that is asked for is executed, and counts


def rectified():
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU())


def test_a_checkpoint_runs_forward_twice():
    block = rectified()
    model = as_model(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False))
    model.block = block
    assert trained(model, normal(3, 7)) == (FIRST + SECOND) + 2 * FIRST + 3 * SECOND


def test_a_checkpoint_stops_where_backward_has_what_it_needs():
    """The last product is not needed again: its gradients need its factors only."""
    block = rectified()[:-1]
    model = as_model(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False))
    model.block = block
    assert trained(model, normal(3, 7)) == FIRST + 2 * FIRST + 3 * SECOND


def test_a_reentrant_checkpoint_runs_forward_twice():
    block = rectified()
    model = as_model(lambda x: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True))
    model.block = block
    assert trained(model, free(3, 7)) == 4 * (FIRST + SECOND)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_gradient_checkpointing_runs_every_block_twice(attn):
    case = ARCHITECTURES[f"gpt2-{attn}"]()
    case.model.train()  # with dropout, whose mask backward needs: each block is run to its end
    case.model.gradient_checkpointing_enable()
    head = contraction(2, 11, 24, 71)
    counted = trained(case.model, *case.inputs, use_cache=False)
    assert counted == case.training_flops + case.flops - head


def test_products_of_a_custom_backward_count():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, y):
            context.save_for_backward(x, y)
            return x @ y

        @staticmethod
        def backward(context, grad):
            x, y = context.saved_tensors
            return grad @ y.mT, x.mT @ grad

    assert trained(as_model(Product.apply), free(5, 7), free(7, 11)) == 3 * contraction(5, 7, 11)


def test_the_loss_is_made_of_those_outputs_that_have_a_gradient():
    layer = nn.Linear(7, 11)
    model = as_model(
        lambda x: {"y": layer(x), "best": layer(x).argmax(-1), "more": [x, None, (layer(x), "a")]}
    )
    model.layer = layer
    assert trained(model, normal(5, 7)) == 5 * contraction(5, 7, 11)


# Our own framework


def tensor(*shape, **options):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32), **options)


def our_stack():
    return Sequential(Linear(7, 9), ReLU(), Linear(9, 5), ReLU(), Linear(5, 11))


def test_our_layers_train_as_those_of_pytorch_do():
    assert trained(our_stack(), tensor(3, 7)) == 2 * FIRST + 3 * SECOND + 3 * THIRD
    assert trained(our_stack(), tensor(3, 7, requires_grad=True)) == 3 * (FIRST + SECOND + THIRD)


def test_our_frozen_layers_have_no_gradients():
    model = our_stack()
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    assert trained(model, tensor(3, 7)) == FIRST + 2 * SECOND + 3 * THIRD


def test_our_convolution_trains_as_that_of_pytorch_does():
    layer, once = Conv2d(4, 6, 3, groups=2, stride=2), convolution(2, (6, 2), (3, 3), (4, 5))
    assert trained(layer, tensor(2, 4, 9, 11)) == 2 * once
    assert trained(layer, tensor(2, 4, 9, 11, requires_grad=True)) == 3 * once


def test_our_gpt_trains_as_gpt2_does():
    """The sizes are those of `flop_cases.gpt2`."""
    case = ARCHITECTURES["gpt2-eager"]()
    model = GPT(71, 24, 2, 3, max_seq_len=19, hidden_dim=88)
    assert trained(model, Tensor(case.inputs[0].numpy())) == case.training_flops


@pytest.mark.parametrize(
    ("name", "first"),
    [("mlp", contraction(784, 128)), ("cnn", convolution(1, (16, 1), (3, 3), (28, 28)))],
)
def test_models_of_the_zoo_train_in_three_passes_less_the_first_layer(name, first):
    workload = load_workload(name)
    forward = count_flops(workload.model, *workload.inputs)
    assert trained(workload.model, *workload.inputs) == 3 * forward - first
