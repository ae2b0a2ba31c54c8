"""Recurrent layers, and modules that are put together, called or shared in unusual ways."""

from dataclasses import dataclass
from typing import Any

import pytest
from flop_cases import as_model, normal, tokens
from flop_formulas import attention, contraction, recurrent
from parts import require_part

from tinytorch.profiling.flops import count_flops

torch = require_part("torch")
nn, F = torch.nn, torch.nn.functional

# Recurrent layers: (layer, shape of the input, truth)

BATCH, TIME, FEATURES, HIDDEN = 3, 5, 7, 11
SHAPE, STEPS = (TIME, BATCH, FEATURES), TIME * BATCH
RECURRENT = {
    "LSTM": (nn.LSTM(7, 11), SHAPE, recurrent(STEPS, 7, 11, gates=4)),
    "LSTM, two layers": (
        nn.LSTM(7, 11, num_layers=2),
        SHAPE,
        recurrent(STEPS, 7, 11, gates=4, layers=2),
    ),
    "LSTM, both directions, two layers": (
        nn.LSTM(7, 11, num_layers=2, bidirectional=True),
        SHAPE,
        recurrent(STEPS, 7, 11, gates=4, layers=2, directions=2),
    ),
    "LSTM with a projection": (
        nn.LSTM(7, 11, num_layers=2, proj_size=4),
        SHAPE,
        recurrent(STEPS, 7, 11, gates=4, layers=2, projection=4),
    ),
    "LSTM, batch first": (
        nn.LSTM(7, 11, batch_first=True),
        (BATCH, TIME, FEATURES),
        recurrent(STEPS, 7, 11, gates=4),
    ),
    "LSTM without bias": (nn.LSTM(7, 11, bias=False), SHAPE, recurrent(STEPS, 7, 11, gates=4)),
    "LSTM, one sequence": (nn.LSTM(7, 11), (TIME, FEATURES), recurrent(TIME, 7, 11, gates=4)),
    "GRU": (nn.GRU(7, 11), SHAPE, recurrent(STEPS, 7, 11, gates=3)),
    "GRU, both directions, three layers": (
        nn.GRU(7, 11, num_layers=3, bidirectional=True),
        SHAPE,
        recurrent(STEPS, 7, 11, gates=3, layers=3, directions=2),
    ),
    "GRU, batch first, without bias": (
        nn.GRU(7, 11, bias=False, batch_first=True),
        (BATCH, TIME, FEATURES),
        recurrent(STEPS, 7, 11, gates=3),
    ),
    "RNN": (nn.RNN(7, 11, num_layers=2), SHAPE, recurrent(STEPS, 7, 11, gates=1, layers=2)),
    "RNN, relu": (nn.RNN(7, 11, nonlinearity="relu"), SHAPE, recurrent(STEPS, 7, 11, gates=1)),
    "LSTMCell": (nn.LSTMCell(7, 11), (BATCH, FEATURES), recurrent(BATCH, 7, 11, gates=4)),
    "GRUCell": (nn.GRUCell(7, 11), (BATCH, FEATURES), recurrent(BATCH, 7, 11, gates=3)),
    "RNNCell": (nn.RNNCell(7, 11), (BATCH, FEATURES), recurrent(BATCH, 7, 11, gates=1)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_costs_its_matrices_at_every_step(name, training):
    layer, shape, truth = RECURRENT[name]
    assert count_flops(layer.train(training), normal(*shape)) == truth


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_packed_sequences_cost_their_real_steps(kind, gates, directions):
    layer = getattr(nn, kind)(7, 11, num_layers=2, bidirectional=directions == 2)
    packed = nn.utils.rnn.pack_padded_sequence(normal(6, 3, 7), [6, 4, 2])
    truth = recurrent(6 + 4 + 2, 7, 11, gates=gates, layers=2, directions=directions)
    assert count_flops(layer, packed) == truth


# Modules that are called, shared and put together


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x):
        return self.layer(self.layer(x).relu())


def test_a_shared_layer_costs_every_time_it_is_called():
    assert count_flops(Twice(), normal(5, 7)) == 2 * contraction(5, 7, 7)


def test_the_same_layer_under_two_names_is_counted_as_often_as_it_runs():
    layer = nn.Linear(7, 7)
    assert count_flops(nn.Sequential(layer, layer, nn.ReLU()), normal(5, 7)) == 2 * contraction(
        5, 7, 7
    )


class TiedLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 7)
        self.head = nn.Linear(7, 13, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


def test_a_tied_head_costs_its_product_and_the_embedding_nothing():
    assert count_flops(TiedLanguageModel(), tokens(13, 2, 5)) == contraction(2, 5, 7, 13)


class Unusual(nn.Module):
    """Layers in nested lists and dictionaries, one of them never called, and products by hand."""

    def __init__(self):
        super().__init__()
        self.rows = nn.ModuleList([nn.ModuleList([nn.Linear(7, 9)]), nn.ModuleList()])
        self.named = nn.ModuleDict({"used": nn.Linear(9, 5), "idle": nn.Linear(9, 1000)})
        self.matrix = nn.Parameter(normal(5, 4))
        self.kernels = nn.ParameterList([normal(6, 1, 3)])

    def forward(self, x):
        for row in self.rows:
            for layer in row:
                x = layer(x)
        x = self.named["used"](x) @ self.matrix
        return F.conv1d(x[:, None], self.kernels[0])


def test_functional_products_inside_containers_count_and_idle_layers_do_not():
    truth = contraction(3, 7, 9) + contraction(3, 9, 5) + contraction(3, 5, 4)
    truth += contraction(3, 6, 1, 3, 2)  # three taps at two of four places
    assert count_flops(Unusual(), normal(3, 7)) == truth


class Branching(nn.Module):
    """What is executed depends on the values of the input."""

    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(7, 3), nn.Linear(7, 300)

    def forward(self, x):
        return self.large(x) if bool(x.sum() > 0) else self.small(x)


def test_only_the_branch_that_these_inputs_take_counts():
    ones = torch.ones(5, 7)
    assert count_flops(Branching(), -ones) == contraction(5, 7, 3)
    assert count_flops(Branching(), ones) == contraction(5, 7, 300)


def test_weight_norm_is_elementwise_and_adds_nothing():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(7, 11))
    assert count_flops(layer, normal(5, 7)) == contraction(5, 7, 11)


def test_spectral_norm_multiplies_the_weight_with_two_vectors():
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(7, 11)).eval()
    truth = contraction(5, 7, 11) + contraction(11, 7) + contraction(11)
    assert count_flops(layer, normal(5, 7)) == truth


def test_functional_call_counts_what_it_calls():
    layer = nn.Linear(7, 11)
    weights = {name: 2 * value.detach() for name, value in layer.named_parameters()}
    model = as_model(lambda x: torch.func.functional_call(layer, weights, (x,)))
    assert count_flops(model, normal(5, 7)) == contraction(5, 7, 11)


def test_vmap_counts_the_whole_batch():
    layer = nn.Linear(7, 11)
    model = as_model(lambda x: torch.func.vmap(layer)(x))
    assert count_flops(model, normal(3, 5, 7)) == contraction(3, 5, 7, 11)


def test_a_model_may_take_keywords_only():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(7, 11)

        def forward(self, *, x, scale=1.0):
            return scale * self.layer(x)

    assert count_flops(Keywords(), x=normal(5, 7), scale=2.0) == contraction(5, 7, 11)


@dataclass
class Answer:
    value: Any
    label: str = "answer"


ANSWERS = {
    "dictionary": lambda y: {"y": y, "nested": [y, (y, None)]},
    "tuple": lambda y: (y, y.argmax(-1), "text", 3),
    "dataclass": lambda y: Answer(y),
    "nothing": lambda y: None,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_model_may_return_anything(name):
    layer = nn.Linear(7, 11)
    model = as_model(lambda x: ANSWERS[name](layer(x)))
    assert count_flops(model, normal(5, 7)) == contraction(5, 7, 11)


def test_inputs_may_be_lists_and_dictionaries_of_tensors():
    layer = nn.Linear(7, 11)
    model = as_model(lambda batch: layer(torch.cat(batch["parts"])))
    assert count_flops(model, {"parts": [normal(2, 7), normal(3, 7)]}) == contraction(5, 7, 11)


def test_products_without_gradient_inside_of_a_model_count():
    layer = nn.Linear(7, 11)

    def forward(x):
        with torch.no_grad():
            return layer(x)

    assert count_flops(as_model(forward), normal(5, 7)) == contraction(5, 7, 11)


def test_inference_mode_and_autocast_do_not_change_the_count():
    layer, x = nn.Linear(7, 11), normal(5, 7)
    with torch.inference_mode():
        assert count_flops(layer, x) == contraction(5, 7, 11)
    with torch.autocast("cpu", torch.bfloat16):
        assert count_flops(layer, x) == contraction(5, 7, 11)


def test_a_layer_written_in_autograd_functions_counts():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, y):
            return x @ y

    model = as_model(Product.apply)
    assert count_flops(model, normal(5, 7), normal(7, 11)) == contraction(5, 7, 11)


def test_attention_by_hand_costs_what_the_fused_function_costs():
    def by_hand(query, key, value):
        return (query @ key.mT / 8**0.5).softmax(-1) @ value

    query, key, value = normal(2, 6, 5, 8), normal(2, 6, 9, 8), normal(2, 6, 9, 8)
    fused = F.scaled_dot_product_attention
    truth = attention(2, 6, 5, 9, width=8)
    assert count_flops(as_model(by_hand), query, key, value) == truth
    assert count_flops(as_model(fused), query, key, value) == truth


def test_counting_again_gives_the_same_number_and_leaves_the_model_alone():
    model = Twice().train()
    weight = model.layer.weight.detach().clone()
    counts = {count_flops(model, normal(5, 7)) for _ in range(3)}
    counts.add(count_flops(model, normal(5, 7), backward=True) - 3 * contraction(5, 7, 7))
    assert counts == {2 * contraction(5, 7, 7)}
    assert model.training
    assert model.layer.weight.grad is None
    assert torch.equal(model.layer.weight, weight)
