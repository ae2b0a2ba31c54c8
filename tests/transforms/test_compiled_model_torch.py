import copy
import pickle

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import Tied, mlp

from tinytorch.errors import ModelError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import why_no_module
from tinytorch.models.workload import preparations_of
from tinytorch.transforms.compile_model import torch as compiled_model_torch
from tinytorch.transforms.compile_model.torch import CompiledModel

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
X = torch.ones(2, 128)


class Counting:
    """A backend that counts the graphs that it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, examples):
        self.graphs += 1
        return graph.forward


class Stateful(nn.Module):
    """Counts its calls in a buffer, in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) + self.calls


@pytest.fixture
def backend(monkeypatch):
    counting = Counting()
    monkeypatch.setattr(compiled_model_torch, "BACKEND", counting)
    return counting


def call(model, *inputs):
    with torch.no_grad():
        return model(*inputs)


def test_it_computes_the_same_and_compiles_once(backend):
    model = mlp().eval()
    twin = CompiledModel(model).prepare((X,), {})
    for _ in range(3):
        torch.testing.assert_close(call(twin, X), call(model, X))
    assert backend.graphs == 1


def test_preparing_is_told_apart(backend):
    twin = CompiledModel(mlp())
    assert preparations_of(twin) == ()
    (prepared,) = preparations_of(twin.prepare((X,), {}))
    assert prepared.what == "compiled"
    assert prepared.seconds > 0
    assert prepared.nbytes is None  # on a processor


def test_the_first_call_prepares_where_nobody_did(backend):
    twin = CompiledModel(mlp())
    call(twin, X)
    assert [each.what for each in twin.preparations] == ["compiled"]


def test_preparing_leaves_state_and_inputs_alone(backend):
    model, x = Stateful(), torch.ones(1, 4)
    twin = CompiledModel(model).prepare((x,), {})
    assert model.calls == 0
    call(twin, x)
    call(twin, x)
    assert model.calls == 2
    assert x.tolist() == [[1, 1, 1, 1]]


def test_a_copy_has_its_own_model_and_compiles_again(backend):
    twin = CompiledModel(mlp().eval()).prepare((X,), {})
    second = copy.deepcopy(twin)
    assert second.preparations == ()
    with torch.no_grad():
        second.model[0].weight.zero_()
    assert not torch.equal(call(second, X), call(twin, X))
    torch.testing.assert_close(call(second, X), call(second.model, X))
    assert backend.graphs == 2


def test_it_can_be_pickled(monkeypatch):
    monkeypatch.setattr(compiled_model_torch, "BACKEND", "eager")
    twin = CompiledModel(mlp().eval())
    second = pickle.loads(pickle.dumps(twin))
    torch.testing.assert_close(call(second, X), call(twin, X))


def test_its_layers_are_not_to_be_touched(backend):
    twin = CompiledModel(mlp())
    assert "it is compiled" in why_no_module(twin)
    assert list(TorchAdapter().watchable_modules(twin)) == [""]


def test_names_and_attributes_are_those_of_the_model(backend):
    model = Tied()
    twin = CompiledModel(model)
    assert [name for name, _ in twin.named_parameters()] == [
        f"model.{name}" for name, _ in model.named_parameters()
    ]
    assert twin.table is model.table


def test_hooks_on_it_are_called(backend):
    twin, seen = CompiledModel(mlp()), []
    twin.register_forward_hook(lambda *_: seen.append("after"))
    call(twin, X)
    assert seen == ["after"]


def test_the_mode_can_be_changed(backend):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0)).eval()
    twin, x = CompiledModel(model), torch.ones(2, 4)
    torch.testing.assert_close(call(twin, x), call(model, x))
    assert call(twin.train(), x).tolist() == torch.zeros(2, 4).tolist()


def test_a_compiler_that_fails_is_a_model_error(monkeypatch):
    def failing(graph, examples):
        raise RuntimeError("no kernels today")

    monkeypatch.setattr(compiled_model_torch, "BACKEND", failing)
    with pytest.raises(ModelError, match=r"torch\.compile failed: .*no kernels today"):
        CompiledModel(mlp()).prepare((X,), {})


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_outputs_are_the_callers_own_where_graphs_would_overwrite_them(mode, monkeypatch):
    static = torch.zeros(2)

    def overwriting(graph, examples):
        def run(*inputs):
            static.add_(1)
            return (static,)

        return run

    monkeypatch.setattr(compiled_model_torch, "BACKEND", overwriting)
    twin = CompiledModel(nn.ReLU(), mode=mode)
    first, second = call(twin, torch.ones(2)), call(twin, torch.ones(2))
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])


def test_packed_weights_are_packed_again_when_they_change(backend):
    model = mlp().eval()
    twin = CompiledModel(model, freeze=True).prepare((X,), {})
    call(twin, X)
    assert backend.graphs == 1
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(call(twin, X), call(model, X))
    assert backend.graphs == 2
    call(twin, X)
    assert backend.graphs == 2


def test_state_that_calls_write_packs_nothing_again(backend):
    twin, x = CompiledModel(Stateful(), freeze=True), torch.ones(1, 4)
    twin.prepare((x,), {})
    for _ in range(3):
        call(twin, x)
    assert backend.graphs == 1
    assert twin.model.calls == 3


def test_packed_attributes_are_packed_again_when_they_change(backend):
    model = mlp().eval()
    model[0].register_forward_hook(lambda layer, inputs, output: output * layer.scale)
    model[0].scale = torch.ones(())
    twin = CompiledModel(model, freeze=True).prepare((X,), {})
    model[0].scale.fill_(3)
    torch.testing.assert_close(call(twin, X), call(model, X))
    assert backend.graphs == 2


def test_a_packed_layer_that_took_the_place_of_another_is_watched(backend):
    model = mlp().eval()
    twin = CompiledModel(model, freeze=True).prepare((X,), {})
    model[0] = nn.Linear(128, model[0].out_features)
    call(twin, X)
    made = backend.graphs
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(call(twin, X), call(model, X))
    assert backend.graphs == made + 1


def test_a_converted_model_is_packed_anew(backend):
    twin = CompiledModel(mlp().eval(), freeze=True).prepare((X,), {}).double()
    assert twin.preparations == ()
    assert call(twin, X.double()).dtype == torch.float64


def test_more_shapes_than_can_be_packed_are_compiled_without_that(backend):
    model = mlp().eval()
    twin = CompiledModel(model, freeze=True, dynamic=False).prepare((X,), {})
    with torch._dynamo.config.patch(recompile_limit=1):
        with pytest.warns(RuntimeWarning, match="without packed weights from now on"):
            found = call(twin, torch.ones(3, 128))
        torch.testing.assert_close(found, call(model, torch.ones(3, 128)))
        for rows in (4, 5):
            x = torch.ones(rows, 128)
            torch.testing.assert_close(call(twin, x), call(model, x))


def test_weights_that_cannot_be_packed_are_an_error_when_preparing(backend):
    class Branching(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    twin = CompiledModel(Branching(), freeze=True)
    with pytest.raises(ModelError, match=r"the weights cannot be packed: .*ata-dependent"):
        twin.prepare((X,), {})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
def test_inductor_trains():
    model = mlp()
    twin = CompiledModel(copy.deepcopy(model))
    for each in (model, twin):
        each(X).sum().backward()
    torch.testing.assert_close(twin.model[0].weight.grad, model[0].weight.grad)


@pytest.mark.slow
def test_inductor_packs_weights_again_when_they_change():
    model = mlp().eval()
    twin = CompiledModel(model, freeze=True).prepare((X,), {})
    torch.testing.assert_close(call(twin, X), call(model, X))
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(call(twin, X), call(model, X))
    model[0] = nn.Linear(128, model[0].out_features)
    torch.testing.assert_close(call(twin, X), call(model, X))
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(call(twin, X), call(model, X))


@pytest.mark.slow
def test_inductor_packs_attributes_again_when_they_change():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(128, 4)
            self.scale = torch.ones(4)

        def forward(self, x):
            return super().forward(x) * self.scale

    model = Scaled().eval()
    twin = CompiledModel(model, freeze=True).prepare((X,), {})
    model.scale.mul_(3)
    torch.testing.assert_close(call(twin, X), call(model, X))


@needs_cuda
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_outputs_on_a_device_stay_what_they_were(mode):
    model = mlp().eval().cuda()
    twin = CompiledModel(model, mode=mode).prepare((X.cuda(),), {})
    inputs = [X.cuda() * factor for factor in (1, 2, 3, 4)]
    outputs = [call(twin, x) for x in inputs]
    for x, output in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(output, call(model, x), rtol=1e-4, atol=1e-4)
    assert twin.preparations[0].nbytes is not None


@needs_cuda
@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning")
def test_graphs_on_a_device_train():
    model = mlp().cuda()
    twin = CompiledModel(copy.deepcopy(model), mode="reduce-overhead")
    for _ in range(4):
        model.zero_grad()
        twin.zero_grad()
        for each in (model, twin):
            each(X.cuda()).sum().backward()
        torch.testing.assert_close(
            twin.model[0].weight.grad, model[0].weight.grad, rtol=1e-4, atol=1e-4
        )
