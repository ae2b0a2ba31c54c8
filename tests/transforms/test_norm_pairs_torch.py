from parts import require_part

torch = require_part("torch")
nn = torch.nn

import pytest
from torch_workloads import workload

from tinytorch.transforms.fold_batch_norm.torch import watch_flow, why_not_always


class Pair(nn.Module):
    """A convolution and a norm, in code that is given."""

    def __init__(self, code):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.code = code

    def forward(self, x):
        return self.code(self, x)


def straight(self, x):
    return self.norm(self.conv(x))


def added(self, x):
    y = self.conv(x)
    return self.norm(y) + y


def sliced_before(self, x):
    y = self.conv(x)
    part = y[:, :1]
    return self.norm(y) + part


def changed_between(self, x):
    return self.norm(self.conv(x).mul_(2))


def given_out(self, x):
    y = self.conv(x)
    return self.norm(y), y


def kept(self, x):
    self.features = self.conv(x)
    return self.norm(self.features)


def kept_in_list(self, x):
    y = self.conv(x)
    self.__dict__.setdefault("memory", []).append(y)
    return self.norm(y)


def reading(self, x):
    return self.norm(self.conv(x)) + self.conv.weight.sum()


def flow_of(code):
    return watch_flow(workload(Pair(code), 2, 3, 6, 6), ["conv"], ["norm"])


def test_a_norm_that_reads_alone_is_found():
    flow = flow_of(straight)
    assert flow.source == {"norm": "conv"}
    assert flow.axes == {"norm": 4}
    assert flow.read_elsewhere == set()
    assert flow.calls == {"conv": 1, "norm": 1}


@pytest.mark.parametrize("code", [added, sliced_before, given_out, kept, kept_in_list])
def test_other_readers_are_seen(code):
    flow = flow_of(code)
    assert flow.source == {"norm": "conv"}
    assert flow.read_elsewhere == {"conv"}


def test_readers_of_the_weight_are_seen():
    assert flow_of(straight).weight_read == set()
    assert flow_of(reading).weight_read == {"conv"}
    assert "reads weights of 'conv'" in why_not_always(Pair(reading), "conv", "norm")


def test_a_change_in_between_is_seen():
    assert flow_of(changed_between).read_elsewhere == {"conv"}
    assert flow_of(lambda self, x: self.norm(self.conv(x) * 2)).source == {}


def test_a_copy_is_no_output_of_the_layer():
    assert flow_of(lambda self, x: self.norm(self.conv(x).clone())).source == {}


def test_two_norms_of_one_output_are_two_readers():
    model = Pair(lambda self, x: self.norm(y := self.conv(x)) + self.other(y))
    model.other = nn.BatchNorm2d(4)
    flow = watch_flow(workload(model, 2, 3, 6, 6), ["conv"], ["norm", "other"])
    assert flow.read_elsewhere == {"conv"}


def test_calls_are_counted():
    flow = flow_of(lambda self, x: straight(self, x) + straight(self, x))
    assert flow.calls == {"conv": 2, "norm": 2}


def test_an_error_is_part_of_the_answer():
    case = workload(Pair(straight), 2, 5, 6, 6)
    assert watch_flow(case, ["conv"], ["norm"]).error.startswith("it cannot be called: Run")


def test_the_model_keeps_no_hooks_and_no_state():
    case = workload(Pair(kept), 2, 3, 6, 6)
    watch_flow(case, ["conv"], ["norm"])
    assert not case.model.conv._forward_hooks
    assert not hasattr(case.model, "features")


# ---------------------------------------------------------------- code


def test_straight_code_is_proved():
    assert why_not_always(Pair(straight), "conv", "norm") == ""


@pytest.mark.parametrize("code", [added, sliced_before, changed_between, given_out])
def test_code_shows_other_readers(code):
    reason = why_not_always(Pair(code), "conv", "norm")
    assert reason == "the output of 'conv' is used elsewhere, too"


@pytest.mark.parametrize(
    "code",
    [
        lambda self, x: straight(self, x) if x.sum() > 0 else self.conv(x),
        lambda self, x: straight(self, x) if x.shape[0] > 1 else self.conv(x),
    ],
)
def test_code_that_decides_by_its_inputs_is_not_proved(code):
    reason = why_not_always(Pair(code), "conv", "norm")
    assert reason == "the code of the model decides by its inputs what to call"


def test_code_that_takes_another_path_is_not_proved():
    reason = why_not_always(Pair(lambda self, x: self.conv(x)), "conv", "norm")
    assert reason == "the code of the model does not always call both of them once"


def test_code_that_cannot_be_traced_says_why():
    def numbers(self, x):
        torch.zeros(len(x))
        return straight(self, x)

    reason = why_not_always(Pair(numbers), "conv", "norm")
    assert reason.startswith("torch.fx cannot trace the code of the model, so other calls may use")
    assert "RuntimeError: 'len' is not supported" in reason


def test_only_the_module_around_both_must_be_traceable():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3)), nn.BatchNorm2d(4))

        def forward(self, x):
            return self.inner(x) if x.sum() > 0 else x

    assert why_not_always(Outer(), "inner.0.0", "inner.1") == ""
