import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
from torch import nn

from tinytorch.errors import SettingError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.transforms.prune import Masks, set_zero
from tinytorch.transforms.prune.layers import check_rankable, find_prunables, kind_of


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def reasons(model, **settings):
    prunables, skipped = find_prunables(model, **settings)
    left = {path: why for each in prunables for path, why in each.reasons.items() if why}
    return {each.layer: each.reason for each in skipped} | left


def test_masks_are_numpy_arrays_that_fit_the_model_again():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Embedding(5, 3))
    with torch.no_grad():
        model[0].weight[0] = 0
    masks = Masks.of(model)
    assert list(masks.kept) == ["0.weight"]
    assert masks.sparsity == pytest.approx(1 / 3)
    np.testing.assert_array_equal(masks.kept["0.weight"], (model[0].weight != 0).numpy())
    with torch.no_grad():
        model[0].weight.fill_(1)
    masks.apply(model)
    assert model[0].weight.sum() == 8
    assert model[0].weight.is_leaf
    assert list(Masks.of(model, ["2.weight"]).kept) == ["2.weight"]
    with pytest.raises(SettingError, match="has no parameter"):
        masks.apply(nn.Linear(4, 3))


def test_subclasses_count_if_they_inherit_how_they_compute():
    assert kind_of(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)) is not None
    assert kind_of(Doubled(2, 2)) is None
    assert kind_of(nn.ConvTranspose2d(1, 1, 1)) is None
    for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        assert kind_of(kind(2, 2, 1)) is not None


def test_the_convolution_of_transformers_is_a_linear_layer():
    conv1d = require_part("transformers.pytorch_utils").Conv1D
    kind = kind_of(conv1d(4, 3))
    assert kind.output_axis == 1
    assert kind.spread(None, torch.ones(3)).shape == (3, 1)


def test_what_cannot_be_pruned_has_a_reason():
    model = nn.ModuleDict(
        {
            "lazy": nn.LazyLinear(3),
            "meta": nn.Linear(3, 3, device="meta"),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            "norm": nn.BatchNorm1d(3),
            "doubled": Doubled(3, 3),
            "table": nn.Embedding(5, 3),
            "eight": nn.Linear(3, 3).to(torch.float8_e4m3fn),
            "fine": nn.Linear(3, 3),
        }
    )
    found = reasons(model, keep=("none",))
    assert "no shape yet" in found["lazy"]
    assert "meta device" in found["meta"]
    assert "computed anew before each call" in found["normed"]
    assert found["norm"] == "BatchNorm1d is not a layer that is pruned; its 6 numbers stay"
    assert found["doubled"] == "a Doubled is a Linear that may compute something else"
    assert "prune_embeddings=True" in found["table"]
    assert "float8_e4m3fn" in found["eight"]
    assert "fine" not in found


def test_quantized_weights_are_left_alone():
    quantization = require_part("torchao.quantization")
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    quantization.quantize_(model[0], quantization.Int8WeightOnlyConfig())
    found = reasons(model)
    assert "held in another form" in found["0"]
    assert "1" not in found


def test_tied_weights_come_once_and_stay_together():
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
    model[1].weight = model[0].weight
    prunables, _ = find_prunables(model, embeddings=True)
    assert [(each.name, each.layers) for each in prunables] == [("0.weight", ("0", "1"))]
    assert list(TorchAdapter().named_tensors(model)) == ["0.weight"]
    prunables, _ = find_prunables(model)
    assert prunables[0].is_left


def test_nan_has_a_mask_but_no_rank():
    model = nn.Linear(2, 2)
    set_zero(TorchAdapter(), model.weight, np.eye(2, dtype=bool))
    assert model.weight.count_nonzero() == 2
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    prunables, _ = find_prunables(model)
    with pytest.raises(SettingError, match="layer '' holds NaN or infinity"):
        check_rankable(TorchAdapter(), prunables)
    assert Masks.of(model).kept["weight"].sum() == 3
