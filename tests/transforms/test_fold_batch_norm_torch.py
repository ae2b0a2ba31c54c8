import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import require_part

torch = require_part("torch")
nn = torch.nn
F = nn.functional

from tiny_transformers import tiny
from torch_workloads import Residual, bits_of, held, is_unchanged, outputs, seeded, workload

from tinytorch.errors import ModelError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.fold_batch_norm import FoldBatchNorm
from tinytorch.transforms.fold_batch_norm.torch import FoldedNorm, folded

ROUNDING = 2e-5
"""Weights are rounded once more, and scaled before sums instead of after them."""


def lively(model):
    """Give norms statistics that matter."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.1)
            if module.affine:
                with torch.no_grad():
                    module.weight.copy_(torch.randn(module.num_features, generator=generator))
                    module.bias.copy_(torch.randn(module.num_features, generator=generator))
    return model


def case_of(make, *shape, dtype=torch.float32):
    return workload(lively(seeded(make)), *shape, dtype=dtype)


def made(case):
    plan = FoldBatchNorm().plan(case)
    return plan, FoldBatchNorm().apply(case, plan)


def change(case, model):
    expected = outputs(case.model, case)
    return abs(outputs(model, case) - expected).max() / abs(expected).max()


def reasons(case):
    plan, model = made(case)
    assert not any(isinstance(each, FoldedNorm) for each in model.modules()) or plan.steps
    assert change(case, model) < ROUNDING
    return {each.layer: each.reason for each in plan.skipped}


class Basic(nn.Module):
    """A residual block with a shortcut, in-place activations and a norm after a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8, affine=False)
        self.shortcut = nn.Sequential(nn.Conv2d(3, 8, 1, stride=2), nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)
        self.head, self.bn3 = nn.Linear(8, 5), nn.BatchNorm1d(5)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return self.bn3(self.head(self.relu(y).mean((2, 3))))


def depthwise():
    return nn.Sequential(
        nn.Conv2d(4, 8, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(inplace=True),
        nn.Conv2d(8, 6, 1, groups=2, bias=False),
        nn.BatchNorm2d(6),
    )


@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        (Basic, (2, 3, 8, 8), 4),
        (depthwise, (2, 4, 6, 6), 3),
        (Residual, (2, 3, 16, 16), 1),
    ],
)
def test_blocks_give_the_same_without_their_norms(make, shape, count):
    case = case_of(make, *shape)
    before = bits_of(case.model)
    plan, model = made(case)
    assert len(plan.steps) == count
    assert plan.skipped == ()
    assert change(case, model) < ROUNDING
    assert sum(isinstance(each, FoldedNorm) for each in model.modules()) == count
    assert not any(isinstance(each, nn.BatchNorm2d) for each in model.modules())
    assert is_unchanged(case.model, before)
    assert plan.shrinkage.value == held(case.model) / held(model)
    assert [path for path, _ in model.named_modules()] == [
        path for path, _ in case.model.named_modules()
    ]
    assert json.loads(json.dumps(plan.to_dict()))["steps"]


def test_a_model_of_transformers_is_folded_completely():
    case = tiny("resnet")
    lively(case.model)
    plan, model = made(case)
    assert plan.skipped == ()
    assert len(plan.steps) == 15
    assert change(case, model) < ROUNDING


CONVOLUTIONS = [
    (nn.Conv1d, nn.BatchNorm1d, 1),
    (nn.Conv2d, nn.BatchNorm2d, 2),
    (nn.Conv3d, nn.BatchNorm3d, 3),
    (nn.ConvTranspose1d, nn.BatchNorm1d, 1),
    (nn.ConvTranspose2d, nn.BatchNorm2d, 2),
    (nn.ConvTranspose3d, nn.BatchNorm3d, 3),
]


@given(
    st.sampled_from(CONVOLUTIONS),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1e-5, 1e-1]),
)
@settings(max_examples=12)
def test_every_convolution_takes_its_norm(kinds, groups, times, has_bias, is_affine, eps):
    conv, norm, axes = kinds

    def make():
        layer = conv(groups * 2, groups * times, 3, groups=groups, bias=has_bias, padding=1)
        return nn.Sequential(layer, norm(groups * times, eps=eps, affine=is_affine))

    case = case_of(make, 2, groups * 2, *(4 for _ in range(axes)), dtype=torch.float64)
    plan, model = made(case)
    assert plan.layers == ("1",)
    assert change(case, model) < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_moves_by_a_few_of_its_roundings(dtype):
    case = case_of(depthwise, 2, 4, 6, 6, dtype=dtype)
    plan, model = made(case)
    if not plan.is_empty:
        assert change(case, model) < 16 * torch.finfo(dtype).eps


def test_the_arithmetic_is_that_of_torch():
    model = lively(seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))).eval()
    conv, norm = model
    weight, bias = nn.utils.fusion.fuse_conv_bn_weights(
        conv.weight,
        conv.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )
    ours = folded(conv, norm)
    assert torch.allclose(ours[0], weight, rtol=1e-5)
    assert torch.allclose(ours[1], bias, rtol=1e-5, atol=1e-6)


def test_the_layout_and_learning_of_a_weight_stay():
    case = case_of(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), 2, 3, 6, 6)
    case.model.to(memory_format=torch.channels_last).requires_grad_(False)
    _, model = made(case)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not model[0].bias.requires_grad


# ---------------------------------------------------------------- what stays


class PreActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.conv = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.stem(x)
        return x + self.conv(F.relu(self.norm(x)))


def test_an_output_that_is_also_added_stays():
    assert reasons(case_of(PreActivation, 2, 3, 5, 5)) == {
        "norm": "the output of 'stem' is used elsewhere, too"
    }


def test_a_norm_of_something_else_stays():
    case = case_of(lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1)), 2, 3, 5, 5)
    expected = "its input is not the output of a convolution or linear layer"
    assert reasons(case) == {"0": expected}
    case = case_of(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.BatchNorm1d(3)), 2, 3)
    assert reasons(case) == {"2": expected}


def test_training_mode_and_missing_statistics_stay():
    case = case_of(Basic, 2, 3, 8, 8)
    case.model.bn1.train()
    found = {each.layer: each.reason for each in FoldBatchNorm().plan(case).skipped}
    assert found == {
        "bn1": "it is in training mode, where it normalises by each batch; call eval() first"
    }
    case = case_of(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)),
        *(2, 3, 5, 5),
    )
    assert reasons(case) == {"1": "it keeps no running statistics, and normalises by each batch"}


class Twice(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.other, self.last = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.shared = shared

    def forward(self, x):
        x = self.norm(self.conv(x))
        if self.shared == "norm":
            return self.norm(self.other(x))
        return self.last(self.conv(x) if self.shared == "conv" else self.other(x))


def test_layers_that_are_called_twice_stay():
    found = reasons(case_of(lambda: Twice("norm"), 2, 3, 5, 5))
    assert found["norm"] == "it is called 2 times in one call of the model"
    found = reasons(case_of(lambda: Twice("conv"), 2, 3, 5, 5))
    assert found["last"] == (
        "'conv' in front of it cannot take it: it is called 2 times in one call of the model"
    )


def test_shared_weights_and_modules_with_two_names_stay():
    case = case_of(lambda: Twice(""), 2, 3, 5, 5)
    case.model.other.weight = case.model.conv.weight
    assert reasons(case)["norm"] == "'conv' shares its weight with another layer"
    case = case_of(lambda: Twice(""), 2, 3, 5, 5)
    case.model.again = case.model.conv
    assert reasons(case)["norm"] == "'conv' stands in several places of the model"


def test_watched_and_computed_layers_stay():
    case = case_of(depthwise, 2, 4, 6, 6)
    case.model[0].register_forward_hook(lambda *call: None)
    nn.utils.parametrizations.weight_norm(case.model[3])
    case.model[7].forward = case.model[7].forward
    found = reasons(case)
    assert "a hook watches it" in found["1"]
    assert found["4"].startswith("'3' in front of it cannot take it: ")
    assert "its forward was replaced" in found["7"]


def test_subclasses_stay():
    class Conv(nn.Conv2d):
        pass

    class Norm(nn.BatchNorm2d):
        pass

    case = case_of(lambda: nn.Sequential(Conv(3, 3, 1), nn.BatchNorm2d(3)), 2, 3, 5, 5)
    assert "Conv may compute something else" in reasons(case)["1"]
    case = case_of(lambda: nn.Sequential(nn.Conv2d(3, 3, 1), Norm(3)), 2, 3, 5, 5)
    assert "Norm is a batch norm that may compute something else" in reasons(case)["1"]


def test_channels_that_are_not_the_outputs_of_a_linear_layer_stay():
    case = case_of(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), 2, 4, 4)
    assert reasons(case)["1"] == "its channels are not the outputs of '0': these are the last axis"


@pytest.mark.parametrize("channels", [4, 6])
def test_channels_of_a_single_example_are_not_those_of_its_norm(channels):
    case = case_of(lambda: nn.Sequential(nn.Conv1d(3, channels, 1), nn.BatchNorm1d(6)), 3, 6)
    assert reasons(case)["1"] == "its channels are not the outputs of '0': these are the first axis"


def test_a_folded_model_is_not_trained_by_mistake():
    case = case_of(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), 2, 3, 5, 5)
    plan, model = made(case)
    assert plan.notes[1] == "the copy is for evaluation: calling it in training mode is an error"
    with pytest.raises(ModelError, match="folded for evaluation; call eval"):
        model.train()(*case.inputs)
    assert change(case, model.eval()) < ROUNDING


def test_other_axes_than_those_that_were_folded_are_an_error():
    case = case_of(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), 3, 4)
    _, model = made(case)
    assert change(case, model) < ROUNDING
    with pytest.raises(AssertionError, match="folded for inputs of 2 axes"):
        model(torch.ones(2, 4, 4))
    assert "axes=2" in repr(model[1])


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(x)
        return self.norm(x) if x.shape[0] > 1 else x


def test_code_that_decides_by_its_inputs_stays():
    assert reasons(case_of(Deciding, 2, 3, 5, 5)) == {
        "norm": "the code of the model decides by its inputs what to call"
    }


def test_code_that_cannot_be_traced_stays():
    class Untraceable(Deciding):
        def forward(self, x):
            x = self.conv(x)
            return self.norm(x) if len(x) > 1 else x

    found = reasons(case_of(Untraceable, 2, 3, 5, 5))
    assert found["norm"].startswith("torch.fx cannot trace the code of the model")


def test_a_weight_that_the_model_also_reads_itself_stays():
    class Reading(Deciding):
        def forward(self, x):
            return self.norm(self.conv(x)).sum() + 1e-9 * self.conv.weight.sum()

    found = reasons(case_of(Reading, 2, 3, 5, 5))
    assert found["norm"] == "the weight of 'conv' is used elsewhere, too"


def test_statistics_that_are_not_finite_stay():
    case = case_of(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), 2, 3, 5, 5)
    case.model[1].running_var[0] = float("inf")
    case.model[1].running_mean[0] = float("inf")
    plan = FoldBatchNorm().plan(case)
    assert plan.skipped[0].reason == "the weights of '0' would not be finite"


def test_other_dtypes_stay():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.norm(self.conv(x))

    case = case_of(Mixed, 2, 3, 5, 5, dtype=torch.bfloat16)
    case.model.norm.float()
    found = {each.layer: each.reason for each in FoldBatchNorm().plan(case).skipped}
    assert found == {"norm": "it holds another dtype than 'conv'"}


def test_a_norm_that_is_not_called_stays():
    case = case_of(lambda: Twice(""), 2, 3, 5, 5)
    case.model.idle = nn.BatchNorm2d(3).eval()
    assert reasons(case) == {"idle": "it was not called"}


def test_models_without_norms_have_nothing_to_do():
    plan, _ = made(workload(nn.Sequential(nn.Linear(3, 2)), 1, 3))
    assert plan.skipped[0].reason == "it has no batch norm"


def test_errors_of_the_model_are_the_reason():
    case = Workload("case", nn.Sequential(nn.BatchNorm2d(3)).eval(), (torch.ones(1, 4, 5, 5),))
    assert FoldBatchNorm().plan(case).skipped[0].reason.startswith("it cannot be called: R")


def test_other_shapes_give_the_same():
    case = case_of(Basic, 2, 3, 8, 8)
    _, model = made(case)
    other = Workload("other", case.model, (torch.rand(5, 3, 13, 6),))
    assert change(other, model) < ROUNDING


def test_a_folded_model_can_be_copied_traced_and_planned_again():
    case = case_of(Basic, 2, 3, 8, 8)
    _, model = made(case)
    assert change(case, copy.deepcopy(model)) == change(case, model)
    assert change(case, torch.fx.symbolic_trace(model)) == change(case, model)
    assert FoldBatchNorm().plan(Workload("again", model, case.inputs)).is_empty


def test_a_plan_for_another_model_is_an_error():
    plan = FoldBatchNorm().plan(case_of(Basic, 2, 3, 8, 8))
    with pytest.raises(SettingError, match="no norm 'bn1' after 'conv1'"):
        FoldBatchNorm().apply(workload(nn.Sequential(nn.Linear(3, 2)), 1, 3), plan)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_works_on_a_device():
    model = lively(seeded(Basic)).cuda().eval()
    case = Workload("case", model, (torch.rand(2, 3, 8, 8, device="cuda"),))
    plan, small = made(case)
    assert len(plan.steps) == 4, plan.skipped
    assert change(case, small) < 1e-3  # convolutions may compute in TF32
