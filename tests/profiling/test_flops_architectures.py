"""Whole models: what is counted is what their configuration says, in both frameworks."""

import numpy as np
import pytest
from flop_cases import (
    ARCHITECTURES,
    gpt2_with_cache,
    mixtral,
    mobilenet_v2_flops,
    resnet50,
    resnet50_flops,
    vit_flops,
)
from flop_formulas import attention, attention_layer, contraction, convolution, feed_forward
from parts import require_part

from tinytorch import Tensor, load_workload
from tinytorch.core.attention import MultiHeadAttention, scaled_dot_product_attention
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.spatial import Conv2d
from tinytorch.core.transformers import GPT
from tinytorch.profiling.flops import count_flops


def test_the_formulas_give_the_published_numbers():
    """Multiply-accumulates of one 224x224 image, as torchvision states them (in 10^9)."""
    assert resnet50_flops(1, 224)[0] / 2e9 == pytest.approx(4.089, abs=5e-4)
    assert mobilenet_v2_flops(1, 224, 1.0)[0] / 2e9 == pytest.approx(0.301, abs=5e-4)
    assert vit_flops(1, 224, 16, 768, 12, 3072, 12, 1000)[0] / 2e9 == pytest.approx(
        17.564, abs=5e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_costs_what_its_configuration_says(name):
    case = ARCHITECTURES[name]()
    assert count_flops(case.model, *case.inputs, **case.options) == case.flops


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_experts_cost_the_chosen_ones_for_each_token_however_they_are_run(experts):
    case = mixtral("sdpa", experts)
    assert count_flops(case.model, *case.inputs) == case.flops


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_with_a_cache_only_new_tokens_are_projected(attn):
    case = gpt2_with_cache(attn)
    assert count_flops(case.model, *case.inputs, **case.options) == case.flops


@pytest.mark.slow
def test_resnet50_on_a_real_image():
    case = resnet50(1, 224)
    assert count_flops(case.model, *case.inputs) == case.flops == 2 * 4_089_184_256


# Models of our own framework. Every count is that of a twin in PyTorch, too.


def tensor(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def zoo_flops(batch):
    """Cost of the models of the zoo, by their documented sizes."""
    width, time, characters = 128, 64, 73
    block = attention_layer(batch, time, time, width, heads=4)
    block += feed_forward(batch * time, width, 4 * width)
    return {
        "mlp": contraction(batch, 784, 128) + contraction(batch, 128, 64) + contraction(batch, 640),
        "cnn": convolution(batch, (16, 1), (3, 3), (28, 28))
        + convolution(batch, (32, 16), (3, 3), (14, 14))
        + contraction(batch, 32 * 7 * 7, 10),
        "gpt": 4 * block + contraction(batch, time, width, characters),
    }


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_a_model_of_the_zoo_costs_what_its_sizes_say(name):
    workload = load_workload(name)
    assert count_flops(workload.model, *workload.inputs) == zoo_flops(1)[name]
    (batch,) = workload.calibration[0]
    assert count_flops(workload.model, batch) == zoo_flops(len(batch))[name]


@pytest.mark.parametrize("leading", [(), (3,), (3, 5), (2, 3, 5)], ids=str)
def test_our_linear_layer_costs_its_matrix_for_every_row(leading):
    assert count_flops(Linear(7, 11), tensor(*leading, 7)) == contraction(*leading, 7, 11)


CONVOLUTIONS = {
    "plain": ({}, convolution(2, (9, 6), (3, 2), (8, 12))),
    "groups": ({"groups": 3}, convolution(2, (9, 2), (3, 2), (8, 12))),
    "all": (
        {"groups": 3, "dilation": 2, "stride": (2, 1), "padding": (1, 2)},
        convolution(2, (9, 2), (3, 2), (4, 15)),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_our_convolution_costs_what_its_twin_costs(name):
    torch = require_part("torch")
    options, truth = CONVOLUTIONS[name]
    image = tensor(2, 6, 10, 13)
    assert count_flops(Conv2d(6, 9, (3, 2), **options), image) == truth
    twin = torch.nn.Conv2d(6, 9, (3, 2), **options)
    assert count_flops(twin, torch.tensor(image.data)) == truth


@pytest.mark.parametrize("causal", [True, False])
def test_our_attention_costs_what_its_twin_costs(causal):
    torch = require_part("torch")
    x = tensor(2, 7, 24)
    truth = attention_layer(2, 7, 7, 24, heads=4)
    assert count_flops(MultiHeadAttention(24, 4, causal=causal), x) == truth
    twin = torch.nn.MultiheadAttention(24, 4, batch_first=True)
    assert count_flops(twin, *[torch.tensor(x.data)] * 3) == truth


def test_our_gpt_costs_what_gpt2_costs():
    """The sizes are those of `flop_cases.gpt2`."""
    case = ARCHITECTURES["gpt2-sdpa"]()
    model = GPT(71, 24, 2, 3, max_seq_len=19, hidden_dim=88)
    assert count_flops(model, Tensor(case.inputs[0].numpy())) == case.flops


def test_products_and_attention_outside_of_layers_count():
    class ByHand:
        def forward(self, x, y):
            return scaled_dot_product_attention(x @ y, x, x, causal=True)

    truth = contraction(3, 5, 7, 7) + attention(3, 1, 5, 5, width=7)
    assert count_flops(ByHand(), tensor(3, 5, 7), tensor(7, 7)) == truth


def test_our_shared_layer_costs_every_time_it_is_called():
    layer = Linear(7, 7)
    assert count_flops(Sequential(layer, ReLU(), layer), tensor(5, 7)) == 2 * contraction(5, 7, 7)
