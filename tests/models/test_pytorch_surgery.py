import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import mlp

from tinytorch.models.pytorch_tensors import replace_modules, why_no_module


def compiled_in_place():
    model = mlp()
    model[0].compile(backend="eager")
    return model


def test_plain_modules_can_be_changed():
    assert why_no_module(mlp()) == ""


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: mlp().forward, "it is a method, and only the layers of a Module can be changed"),
        (lambda: torch.jit.trace(mlp(), torch.ones(1, 128)), "change the model that it was made"),
        (lambda: torch.compile(mlp(), backend="eager"), "it is compiled; change it first"),
        (compiled_in_place, "it is compiled; change it first"),
        (lambda: nn.LazyLinear(3), "no shape yet; call the model once before"),
        (lambda: nn.Linear(2, 2, device="meta"), "'weight' is on the meta device"),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "change the model in its .module"),
    ],
)
def test_others_have_a_reason(make, reason):
    assert reason in why_no_module(make())


def test_a_layer_is_replaced_wherever_it_is():
    shared, new, calls = nn.Linear(2, 2), nn.Linear(2, 2), []
    shared.register_forward_hook(lambda *_: calls.append("after"))
    shared.register_forward_pre_hook(lambda *_: calls.append("before"))
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared)).eval()
    assert replace_modules(model, {shared: new}) is model
    assert model[0] is model[1][1] is new
    assert not new.training
    model(torch.ones(1, 2))
    assert calls == ["before", "after"] * 2


def test_a_layer_may_be_put_into_the_one_that_replaces_it():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU())
    replace_modules(model, {layer: nn.Sequential(layer)})
    assert model[0][0] is layer


def test_a_layer_that_replaces_itself_stays_as_it_is():
    model = mlp()
    model[0].eval()  # in a model that is training
    assert replace_modules(model, {model[0]: model[0], model[2]: model[2]}) is model
    assert [each.training for each in model] == [False, True, True]


def test_the_model_itself_can_be_replaced():
    old, new = nn.Linear(2, 2), nn.Linear(2, 2)
    assert replace_modules(old, {old: new}) is new
