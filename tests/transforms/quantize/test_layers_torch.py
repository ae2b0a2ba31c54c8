import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import seeded

from tinytorch.transforms.quantize.torch_layers import (
    QuantizedEmbedding,
    as_linear,
    kind_of,
    weights_of,
)


class Doubled(nn.Linear):
    """A Linear that computes something else."""


def conv1d(outputs, inputs):
    return require_part("transformers.pytorch_utils").Conv1D(outputs, inputs)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (nn.Linear(2, 3), "linear"),
        (nn.Conv2d(1, 2, 3), "convolution"),
        (nn.Embedding(3, 2), "embedding"),
        (nn.GRU(2, 2), "recurrent"),
        (nn.LayerNorm(2), None),
        (Doubled(2, 2), None),
    ],
)
def test_a_layer_is_known_by_its_exact_class(layer, kind):
    assert kind_of(layer) == kind


def test_the_layers_of_gpt2_are_linear_with_the_matrix_the_other_way_round():
    layer, x = seeded(conv1d, 5, 3), torch.randn(4, 3)
    linear = as_linear(layer)
    assert kind_of(layer) == "linear"
    assert (linear.in_features, linear.out_features) == (3, 5)
    assert linear.weight.data_ptr() == layer.weight.data_ptr()  # a view, not a copy
    torch.testing.assert_close(linear(x), layer(x))


def test_other_layers_stay_what_they_are():
    layer = nn.Linear(2, 2)
    assert as_linear(layer) is layer


def test_weights_are_what_a_quantizer_replaces():
    assert set(weights_of(nn.Linear(2, 2))) == {"weight"}
    assert set(weights_of(nn.LSTM(2, 2))) == {"weight_ih_l0", "weight_hh_l0"}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
def test_a_weight_that_a_hook_computes_is_none():
    assert weights_of(nn.utils.weight_norm(nn.Linear(2, 2))) == {}


def test_rows_are_looked_up_in_integers():
    class Table(torch.Tensor):
        qdata = torch.tensor([[1, -2], [3, 4]], dtype=torch.int8)
        scale = torch.tensor([[0.5], [2.0]])

    weight = nn.Parameter(torch.empty(2, 2).as_subclass(Table), requires_grad=False)
    layer = QuantizedEmbedding(nn.Embedding(2, 2, padding_idx=1), weight)
    assert layer(torch.tensor([[1], [0]])).tolist() == [[[6.0, 8.0]], [[0.5, -1.0]]]
    assert (layer.num_embeddings, layer.padding_idx) == (2, 1)
