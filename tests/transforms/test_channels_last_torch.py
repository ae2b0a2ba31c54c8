import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tiny_transformers import tiny
from torch_workloads import Residual, bits_of, is_unchanged, outputs, seeded, workload

from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.channels_last import ChannelsLast
from tinytorch.transforms.channels_last.torch import ChannelsLastModel

ROUNDING = 1e-5
"""Sums of a few hundred products in another order, relative to the largest output."""


def made(case):
    plan = ChannelsLast().plan(case)
    return plan, ChannelsLast().apply(case, plan)


def is_close(case, model):
    expected, found = outputs(case.model, case), outputs(model, case)
    return abs(found - expected).max() <= ROUNDING * abs(expected).max()


def test_convolutions_are_laid_out_and_outputs_stay():
    case = workload(seeded(Residual), 2, 3, 16, 16)
    before = bits_of(case.model)
    plan, model = made(case)
    assert plan.layers == ("stem", "conv")
    assert model.stem.weight.is_contiguous(memory_format=torch.channels_last)
    assert is_close(case, model)
    assert is_unchanged(case.model, before)
    assert case.model.stem.weight.is_contiguous()
    assert "on a processor this layout may as well be slower" in plan.notes


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_models_of_transformers_give_the_same(name):
    case = tiny(name)
    plan, model = made(case)
    assert not plan.is_empty
    assert is_close(case, model)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Conv3d(2, 4, 3), (2, 2, 5, 5, 5)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 6, 6)),
        (lambda: nn.Conv2d(4, 4, 3, groups=4), (4, 8, 8)),  # without a batch: 3 axes
    ],
)
def test_every_kind_of_convolution_gives_the_same_in_the_usual_layout(layer, shape):
    case = workload(nn.Sequential(layer(), nn.ReLU()), *shape)
    plan, model = made(case)
    assert plan.layers == ("0",)
    assert is_close(case, model)
    assert model(*case.inputs).is_contiguous()


def test_a_batch_of_another_shape_gives_the_same():
    case = workload(nn.Sequential(nn.Conv2d(3, 4, 3)), 1, 3, 8, 8)
    _, model = made(case)
    other = Workload("other", case.model, (torch.rand(5, 3, 6, 11),))
    assert is_close(other, model)


def test_inputs_inside_of_dictionaries_are_laid_out():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, batch, scale=None):
            self.layout = batch["image"].is_contiguous(memory_format=torch.channels_last)
            return {"out": self.conv(batch["image"]) * scale, "word": "same"}

    batch = {"image": torch.rand(2, 3, 5, 5), "ids": torch.arange(3)}
    case = Workload("case", Named().eval(), (batch,), keywords={"scale": torch.ones(1)})
    _, model = made(case)
    assert model(batch, scale=torch.ones(1))["word"] == "same"
    assert model.model.layout
    assert not batch["image"].is_contiguous(memory_format=torch.channels_last)


def test_models_without_such_convolutions_have_nothing_to_do():
    plan, model = made(workload(nn.Sequential(nn.Conv1d(3, 4, 2), nn.ReLU()), 2, 3, 6))
    assert plan.is_empty
    assert plan.skipped[0].reason.startswith("it has no convolution in two or three dimensions")
    assert plan.skipped[1].reason == "its weight has 3 axes, for which there is no such layout"
    assert not isinstance(model, ChannelsLastModel)


class Viewing(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).view(len(x), -1)


def test_code_that_needs_the_usual_layout_is_refused_with_advice():
    plan, _ = made(workload(Viewing(), 2, 3, 8, 8))
    assert plan.is_empty
    assert plan.skipped[0].reason.startswith("RuntimeError: view size is not compatible")
    assert plan.skipped[0].reason.endswith("reshape() does not)")


class Strides(nn.Module):
    """Wrong outputs without an error: it reads memory in the order in which it lies there."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        x = self.conv(x)
        return torch.as_strided(x, (4,), (1,)).clone()


def test_code_that_reads_memory_is_refused():
    plan, _ = made(workload(seeded(Strides), 1, 3, 8, 8))
    assert plan.is_empty
    assert "its outputs would change by" in plan.skipped[0].reason


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x.mul_(2))


def test_a_model_that_writes_into_its_inputs_is_left_alone():
    plan, _ = made(workload(Writing(), 1, 3, 8, 8))
    assert plan.is_empty
    assert plan.skipped[0].reason.startswith("it writes into its inputs")


def test_shared_kernels_stay_shared():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    model[1].weight = model[0].weight
    case = workload(model, 1, 3, 8, 8)
    _, laid = made(case)
    assert laid.model[0].weight is laid.model[1].weight
    assert is_close(case, laid)


def test_a_weight_computed_at_each_call_is_skipped():
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    plan, _ = made(workload(nn.Sequential(conv), 1, 3, 8, 8))
    assert plan.skipped[1].reason == "its weight is computed anew before each call"


def test_done_twice_is_done_once():
    case = workload(nn.Sequential(nn.Conv2d(3, 4, 3)), 1, 3, 8, 8)
    _, model = made(case)
    plan, _ = made(Workload("again", model, case.inputs))
    assert plan.skipped[0].reason == "its images have the channels last already"


def test_a_plan_for_another_model_is_an_error():
    plan = ChannelsLast().plan(workload(seeded(Residual), 2, 3, 16, 16))
    with pytest.raises(SettingError, match="no convolution 'stem'"):
        ChannelsLast().apply(workload(nn.Sequential(nn.Linear(3, 2)), 1, 3), plan)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_works_on_a_device_in_half_precision():
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).cuda().half().eval()
    case = Workload("case", model, (torch.rand(2, 8, 16, 16, device="cuda").half(),))
    plan, laid = made(case)
    assert not plan.is_empty, plan.skipped
    expected, found = outputs(model, case), outputs(laid, case)
    assert abs(found - expected).max() <= 1e-2 * abs(expected).max()
