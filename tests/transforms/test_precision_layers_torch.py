import copy
import pickle

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import seeded

from tinytorch.transforms.lower_precision.torch import (
    LowerPrecisionModel,
    convert_model,
    is_lower_layer,
    is_plain_float,
    lower_class,
    lower_layer,
)

EPS = torch.finfo(torch.bfloat16).eps


def conv1d_of_transformers():
    from transformers.pytorch_utils import Conv1D

    return Conv1D(6, 8)


LAYERS = [
    (lambda: nn.Linear(8, 6), (3, 8)),
    (lambda: nn.Linear(8, 6, bias=False), (2, 3, 8)),
    (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 8)),
    (lambda: nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect", groups=2), (2, 4, 8, 8)),
    (lambda: nn.Conv3d(4, 6, 2), (1, 4, 3, 3, 3)),
    (conv1d_of_transformers, (2, 3, 8)),
]


@pytest.mark.parametrize(("make", "shape"), LAYERS)
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_a_lower_layer_multiplies_lower_and_gives_back_what_it_got(make, shape, given):
    layer = seeded(make)
    exact, kind = copy.deepcopy(layer), type(layer)
    lower_layer(layer, torch.bfloat16)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = exact(x), layer(x.to(given))
    assert found.dtype == given
    assert layer.weight.dtype == torch.bfloat16
    assert is_lower_layer(layer)
    assert not is_lower_layer(exact)
    # inputs, weights and outputs are each rounded once, by half a unit at most
    size = float(expected.abs().max())
    assert float((found - expected).abs().max()) < 4 * EPS * size
    assert [*layer.state_dict()] == [*exact.state_dict()]
    again = pickle.loads(pickle.dumps(layer))
    with torch.no_grad():
        assert torch.equal(again(x.to(given)), found)
    if kind in (nn.Linear, nn.Conv2d):
        assert isinstance(layer, kind)


def test_only_known_classes_are_lowered():
    class Own(nn.Linear):
        pass

    assert lower_class(Own(2, 2)) is None
    assert lower_class(nn.LayerNorm(2)) is None
    assert lower_class(nn.Linear(2, 2)) is not None


def test_a_lowered_table_gives_rows_as_before():
    table = nn.Embedding(5, 3)
    exact = table.weight.detach().clone()
    lower_layer(table, torch.float16)
    rows = table(torch.tensor([1, 4]))
    assert rows.dtype == torch.float32
    assert torch.equal(rows, exact[[1, 4]].half().float())


def test_plain_floats_are_told_from_others():
    assert is_plain_float(torch.ones(1))
    assert is_plain_float(torch.ones(1).half())
    for other in (None, torch.ones(1, dtype=torch.int8), torch.ones(1, dtype=torch.complex64)):
        assert not is_plain_float(other)
    assert not is_plain_float(torch.ones(1).to(torch.float8_e4m3fn))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.other.weight = self.one.weight
        self.register_buffer("turn", torch.ones(3, dtype=torch.complex64) * 1j)
        self.register_buffer("count", torch.ones(3, dtype=torch.long))
        self.register_buffer("mean", torch.ones(3))
        self.same = self.mean
        self.register_buffer("twin", self.mean)

    def forward(self, x):
        return self.other(self.one(x))


def test_everything_with_fractions_is_converted_and_stays_shared():
    model = Mixed()
    convert_model(model, torch.bfloat16)
    assert model.one.weight is model.other.weight
    assert model.one.weight.dtype == model.mean.dtype == torch.bfloat16
    assert model.twin is model.mean
    assert model.turn.dtype == torch.complex64
    assert torch.equal(model.turn.imag, torch.ones(3))
    assert model.count.dtype == torch.long


def test_what_is_kept_computes_in_its_own_dtype():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    convert_model(model, torch.bfloat16, kept=("1",), cast=("1",))
    assert model[1].weight.dtype == torch.float32
    assert model(torch.ones(1, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_outputs_come_back_in_the_dtype_from_before():
    model = LowerPrecisionModel(nn.Linear(3, 2).bfloat16(), torch.bfloat16, torch.float32)
    assert model(torch.ones(1, 3)).dtype == torch.float32
    assert model.in_features == 3
    model.outer = None
    assert model(torch.ones(1, 3)).dtype == torch.bfloat16


@pytest.mark.parametrize("inner", [torch.bfloat16, torch.float16])
def test_the_lowest_number_stays_finite_and_what_overflows_does_not(inner):
    lowest = torch.finfo(torch.float32).min
    seen = []
    model = LowerPrecisionModel(nn.Identity(), inner, None)
    model.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(torch.tensor([lowest, -torch.inf, -lowest, 1.0]))
    assert seen[0].tolist() == [torch.finfo(inner).min, -torch.inf, torch.inf, 1.0]
