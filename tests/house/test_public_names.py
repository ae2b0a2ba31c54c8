"""The public names, module by module. A name that leaves this page breaks somebody's program."""

import importlib

import pytest

PUBLIC = {
    "tinytorch": {"Tensor", "__version__"},
    "tinytorch.core.tensor": {"Parameter", "Tensor", "apply", "concatenate", "stack", "where"},
    "tinytorch.core.autograd": {"backward", "enable_autograd", "is_grad_enabled", "no_grad"},
    "tinytorch.core.activations": {"GELU", "ReLU", "Sigmoid", "Softmax", "Tanh"},
    "tinytorch.core.layers": {
        "Dropout",
        "GELU",
        "Linear",
        "ReLU",
        "Sequential",
        "Sigmoid",
        "Softmax",
        "Tanh",
    },
    "tinytorch.core.losses": {"BinaryCrossEntropyLoss", "CrossEntropyLoss", "MSELoss"},
    "tinytorch.core.optimizers": {"SGD", "Adam", "AdamW"},
    "tinytorch.core.spatial": {"AvgPool2d", "BatchNorm2d", "Conv2d", "Flatten", "MaxPool2d"},
    "tinytorch.core.attention": {"MultiHeadAttention", "scaled_dot_product_attention"},
    "tinytorch.core.transformers": {
        "GPT",
        "LayerNorm",
        "TinyGPT",
        "Transformer",
        "TransformerBlock",
    },
    "tinytorch.core.dataloader": {"DataLoader", "TensorDataset"},
    "tinytorch.core.training": {"Trainer"},
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module):
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_can_be_imported(module):
    found = importlib.import_module(module)
    assert [name for name in sorted(PUBLIC[module]) if not hasattr(found, name)] == []


def test_an_unknown_name_is_an_attribute_error():
    tinytorch = importlib.import_module("tinytorch")
    with pytest.raises(AttributeError, match="'tinytorch' has no attribute 'no_such_name'"):
        tinytorch.no_such_name  # noqa: B018


def test_the_lazy_names_show_in_dir():
    tinytorch = importlib.import_module("tinytorch")
    assert set(tinytorch.__all__) <= set(dir(tinytorch))
