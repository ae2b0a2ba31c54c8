import copy

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tiny_transformers import continued, tiny
from torch_workloads import Residual, bits_of, is_unchanged, seeded, workload

from tinytorch.models.pytorch_compile import compiled
from tinytorch.models.workload import Workload
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.inference_mode.torch import InferenceModel


def made(case):
    plan = InferenceMode().plan(case)
    return plan, InferenceMode().apply(case, plan)


def reason(case):
    plan, model = made(case)
    assert plan.is_empty
    assert not isinstance(model, InferenceModel)
    return plan.skipped[0].reason


def test_outputs_are_the_same_and_record_nothing():
    case = workload(seeded(Residual), 2, 3, 16, 16)
    before = bits_of(case.model)
    plan, model = made(case)
    output = model(*case.inputs)
    assert torch.equal(output, case.model(*case.inputs))
    assert output.is_inference()
    assert not output.requires_grad
    assert not any(each.requires_grad for each in model.parameters())
    assert plan.layers == ("",)
    assert plan.notes[0].startswith("the outputs are inference tensors")
    assert is_unchanged(case.model, before)
    assert all(each.requires_grad for each in case.model.parameters())


@pytest.mark.slow
def test_copies_and_compositions_go_on_working():
    case = tiny("gpt2")
    _, model = made(case)
    again = copy.deepcopy(model)
    ids = case.inputs[0]
    assert again(ids).logits.is_inference()
    assert torch.equal(continued(model, ids), continued(case.model, ids))
    plan = InferenceMode().plan(Workload("twice", model, case.inputs))
    assert plan.skipped[0].reason == "it is called in inference mode already"


def test_inputs_that_ask_for_gradients_need_a_graph():
    x = torch.ones(1, 3, requires_grad=True)
    assert "requires_grad" in reason(Workload("case", nn.Linear(3, 2), (x,)))


class Forces(nn.Module):
    """The derivative of an energy, as models of molecules compute it."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(3, 1)

    def forward(self, places):
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            return torch.autograd.grad(self.energy(places).tanh().sum(), places)[0]


def test_a_model_that_computes_gradients_is_left_alone():
    case = workload(Forces(), 4, 3)
    assert reason(case).startswith("RuntimeError: ")
    assert case.model(*case.inputs).shape == (4, 3)


def test_training_mode_that_matters_is_refused_with_advice():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    case = Workload("case", model, (torch.ones(2, 8),))
    assert reason(case).endswith("it is in training mode; call eval() on it first")
    assert model.training


def test_training_mode_that_does_not_matter_is_noted():
    case = Workload("case", nn.Linear(8, 8), (torch.ones(2, 8),))
    plan, model = made(case)
    assert "the copy is in evaluation mode" in plan.notes
    assert not model.training
    assert case.model.training


class Counting(nn.Module):
    """A model with state that each call carries on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("total", torch.zeros(2))
        self.last = None

    def forward(self, x):
        self.total += self.layer(x).sum(0)
        self.last = x * 2 if self.last is None else self.last + x
        return self.total + self.last


def test_state_is_carried_on_as_before():
    case = workload(seeded(Counting), 1, 2)
    _, model = made(case)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(*case.inputs), case.model(*case.inputs))


class Viewing(nn.Linear):
    """A layer that looks at its input in another shape first, as most language models do."""

    def forward(self, x):
        return super().forward(x.view(-1, self.in_features))


def test_it_can_be_compiled_afterwards():
    """Inside of compiled code, torch cannot enter inference mode where something is viewed."""
    layer = seeded(Viewing, 4, 4)
    model, x = InferenceModel(layer), torch.ones(2, 3, 4)
    call = compiled(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        found, wanted = call(x), layer(x)
    assert torch.equal(found, wanted)
    assert found.is_inference()


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Custom(nn.Module):
    def forward(self, x):
        x.add_(1)
        return Doubling.apply(x)


def test_custom_functions_and_written_inputs_work_as_before():
    case = workload(nn.Sequential(nn.Linear(3, 3), Custom()), 2, 3)
    plan, model = made(case)
    assert not plan.is_empty
    assert torch.equal(model(*case.inputs), case.model(*case.inputs))
    own = Workload("own", Custom(), (torch.zeros(2),))
    x = torch.zeros(2)
    made(own)[1](x)
    assert torch.equal(x, torch.ones(2))
    assert torch.equal(own.inputs[0], torch.zeros(2))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)), "compiled by torch.jit"),
        (lambda: nn.DataParallel(nn.Linear(3, 2)), "spread over devices"),
        (lambda: nn.Linear(3, 2).forward, "it is a method"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_models_that_cannot_be_wrapped_are_left_alone(model, words):
    plan = InferenceMode().plan(Workload("case", model(), (torch.ones(1, 3),)))
    assert plan.is_empty
    assert words in plan.skipped[0].reason


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_works_on_a_device():
    case = Workload("case", nn.Linear(3, 2).cuda().eval(), (torch.ones(1, 3, device="cuda"),))
    plan, model = made(case)
    assert not plan.is_empty
    assert torch.equal(model(*case.inputs), case.model(*case.inputs))
