import copy
import pickle
import weakref

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from fake_capture import pretend_to_capture
from torch_workloads import mlp

from tinytorch.errors import ModelError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import why_no_module
from tinytorch.models.workload import preparations_of
from tinytorch.transforms.capture_graph import torch as captured_model_torch
from tinytorch.transforms.capture_graph.torch import CapturedModel

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
X = torch.ones(2, 128)


class Stateful(nn.Module):
    """Counts its calls in a buffer, in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


class Replacing(Stateful):
    """Counts its calls in another buffer each time."""

    def forward(self, x):
        self.calls = self.calls + 1
        return x + self.calls


class Tabled(nn.Module):
    """Keeps a table for the last length that came, as an attribute that is no buffer."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None or len(self.table) != x.shape[-1]:
            self.table = torch.arange(x.shape[-1], dtype=x.dtype)
        return x + self.table


class Writing(nn.Module):
    """Writes to its inputs if asked to."""

    def forward(self, x, notes=None, *, in_place=False):
        if notes is not None:
            notes.append(len(notes))
        return x.add_(1) if in_place else x + 1


class Scaling(nn.Module):
    """Takes more than tensors."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, *, factor=1.0, more=None):
        scaled = x * factor * self.weight
        return {"scaled": scaled, "more": scaled if more is None else scaled + more["x"]}


@pytest.fixture
def captures(monkeypatch):
    return pretend_to_capture(monkeypatch)


def call(model, *inputs, **keywords):
    with torch.no_grad():
        return model(*inputs, **keywords)


# ---------------------------------------------------------------- calling it


def test_replays_compute_with_the_inputs_of_the_call(captures):
    model = mlp().eval()
    twin = CapturedModel(model).prepare((X,), {})
    for factor in (1, -2, 3):
        torch.testing.assert_close(call(twin, X * factor), call(model, X * factor))
    assert captures.count == 1


def test_outputs_are_the_callers_own(captures):
    twin = CapturedModel(Scaling().eval())
    first, second = call(twin, X), call(twin, X * 2)
    assert first["scaled"][0, 0] == 1
    assert second["scaled"][0, 0] == 2


def test_outputs_are_overwritten_on_request(captures):
    twin = CapturedModel(Scaling().eval(), copy_outputs=False)
    first = call(twin, X)
    call(twin, X * 2)
    assert first["scaled"][0, 0] == 2


def test_inputs_are_not_kept(captures):
    twin, x = CapturedModel(Scaling().eval()), X.clone()
    call(twin, x)
    call(twin, X * 5)
    assert torch.equal(x, X)
    alive = weakref.ref(x)
    del x
    assert alive() is None


def test_each_kind_of_arguments_is_captured_once(captures):
    twin = CapturedModel(Scaling().eval())
    for _ in range(2):
        assert call(twin, X)["scaled"][0, 0] == 1
        assert call(twin, X, factor=3.0)["scaled"][0, 0] == 3
        assert call(twin, torch.ones(5))["scaled"].shape == (5,)
        assert call(twin, X, more={"x": X})["more"][0, 0] == 2
    assert captures.count == 4
    assert len(twin.preparations) == 4


def test_kinds_beyond_the_most_run_as_before(captures):
    twin = CapturedModel(Scaling().eval(), most=1)
    call(twin, X)
    with pytest.warns(RuntimeWarning, match="more than 1 kinds came"):
        assert call(twin, torch.ones(3))["scaled"].tolist() == [1, 1, 1]
    assert call(twin, torch.ones(4))["scaled"].tolist() == [1, 1, 1, 1]  # and says so only once
    assert captures.count == 1


def test_state_advances_once_per_call(captures):
    model = Stateful().eval()
    twin = CapturedModel(model).prepare((X,), {})
    assert model.calls == 0
    assert [call(twin, X)[0, 0].item() for _ in range(3)] == [2, 3, 4]
    assert model.calls == 3


def test_state_that_takes_the_place_of_another_is_refused(captures):
    model = Replacing().eval()
    with pytest.raises(ModelError, match="instead of its buffer 'calls'"):
        CapturedModel(model).prepare((X,), {})
    assert model.calls == 0
    with pytest.warns(RuntimeWarning, match="was not captured"):
        assert call(CapturedModel(model), X)[0, 0] == 2


def test_inference_mode_and_ordinary_calls_mix(captures):
    twin = CapturedModel(Scaling().eval())
    with torch.inference_mode():
        assert twin(X)["scaled"][0, 0] == 1
    assert call(twin, X * 2)["scaled"][0, 0] == 2
    assert captures.count == 1


def test_casting_is_another_kind(captures, monkeypatch):
    twin = CapturedModel(Scaling().eval())
    call(twin, X)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    call(twin, X)
    assert captures.count == 2


# ---------------------------------------------------------------- what is not replayed


def test_training_runs_as_before(captures):
    twin = CapturedModel(Scaling().train())
    with pytest.warns(RuntimeWarning, match="it is in training mode"):
        call(twin, X)
    twin.eval()
    call(twin, X)
    assert captures.count == 1


def test_a_layer_in_training_mode_runs_as_before(captures):
    model = nn.Sequential(nn.Linear(128, 4), nn.Dropout(1.0)).eval()
    twin = CapturedModel(model).prepare((X,), {})
    model[1].train()
    with pytest.warns(RuntimeWarning, match="it is in training mode"):
        assert not call(twin, X).any()


def test_calls_that_write_to_their_inputs_run_as_before(captures):
    twin, x = CapturedModel(Writing().eval()), torch.zeros(2)
    assert call(twin, x).tolist() == [1, 1]
    with pytest.warns(RuntimeWarning, match="not captured: the model writes to its inputs"):
        call(twin, x, in_place=True)
    assert x.tolist() == [1, 1]
    notes = []
    call(twin, x, notes)
    assert notes == [0]


def test_it_can_be_part_of_something_compiled(captures):
    twin = CapturedModel(Scaling().eval())
    outer = torch.compile(lambda x: twin(x)["scaled"] + 1, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert outer(X)[0, 0] == 2
    assert captures.count == 0


def test_transformations_of_functions_run_as_before(captures):
    twin = CapturedModel(Scaling().eval())
    with pytest.warns(RuntimeWarning, match=r"torch\.func"), torch.no_grad():
        found = torch.func.vmap(lambda x: twin(x)["scaled"])(X)
    assert torch.equal(found, X)


def test_gradients_run_as_before(captures):
    twin = CapturedModel(Scaling().eval())
    with pytest.warns(RuntimeWarning, match="gradients are asked for; call it inside of"):
        twin(X)["scaled"].sum().backward()
    assert twin.weight.grad == X.numel()
    twin.requires_grad_(False)
    twin(X)
    assert captures.count == 1


def test_inputs_that_ask_for_gradients_run_as_before(captures):
    twin = CapturedModel(Scaling().eval()).requires_grad_(False)
    x = X.clone().requires_grad_()
    with pytest.warns(RuntimeWarning, match="gradients are asked for"):
        twin(x)["scaled"].sum().backward()
    assert torch.equal(x.grad, X)
    assert captures.count == 0


def test_inputs_elsewhere_run_as_before(captures):
    twin = CapturedModel(Stateful().eval())
    with pytest.warns(RuntimeWarning, match="an input is not on cpu"):
        assert call(twin, torch.ones(2, device="meta")).is_meta
    assert captures.count == 0


def test_unknown_arguments_run_as_before(captures):
    twin = CapturedModel(Second().eval())
    with pytest.warns(RuntimeWarning, match="an argument is a object"):
        assert call(twin, object(), X) is X
    assert captures.count == 0


class Second(nn.Module):
    def forward(self, first, second):
        return second


def test_a_processor_runs_as_before():
    twin = CapturedModel(mlp().eval())
    with pytest.warns(RuntimeWarning, match="CUDA graphs need a CUDA device"):
        torch.testing.assert_close(call(twin, X), call(twin.model, X))
    with pytest.raises(ModelError, match="CUDA graphs need a CUDA device"):
        twin.prepare((X,), {})


def test_what_cannot_be_captured_runs_as_before(captures, monkeypatch):
    def refuse(step, **settings):
        raise ModelError("it waits for the device")

    twin = CapturedModel(Scaling().eval())
    monkeypatch.setattr(captured_model_torch, "capture", refuse)
    with pytest.warns(RuntimeWarning, match="not captured: it waits for the device"):
        call(twin, X)
    assert call(twin, X * 2)["scaled"][0, 0] == 2  # without a second try
    with pytest.raises(ModelError, match="waits for the device"):
        twin.prepare((X,), {})


# ---------------------------------------------------------------- weights


def test_weights_that_are_written_are_seen(captures):
    twin = CapturedModel(Scaling().eval()).prepare((X,), {})
    with torch.no_grad():
        twin.model.weight.fill_(7)
    assert call(twin, X)["scaled"][0, 0] == 7
    assert captures.count == 1


def test_weights_in_another_place_are_captured_anew(captures):
    twin = CapturedModel(Scaling().eval()).prepare((X,), {})
    twin.model.weight = nn.Parameter(torch.full((), 7.0))
    assert call(twin, X)["scaled"][0, 0] == 7
    assert captures.count == 2


def test_a_converted_model_is_captured_anew(captures):
    twin = CapturedModel(Scaling().eval()).prepare((X,), {}).double()
    assert twin.preparations == ()
    assert call(twin, X.double())["scaled"].dtype == torch.float64
    assert captures.count == 2


def test_layers_in_the_place_of_others_are_captured_anew(captures):
    twin = CapturedModel(nn.Sequential(nn.Identity(), Scaling()).eval()).prepare((X,), {})
    twin.model[0] = nn.Sigmoid().eval()
    assert call(twin, X)["scaled"][0, 0] == torch.sigmoid(torch.ones(()))
    assert captures.count == 2


def test_attributes_in_the_place_of_others_are_captured_anew(captures):
    twin = CapturedModel(Tabled().eval()).prepare((X,), {})
    assert call(twin, X)[0, -1] == 128
    twin.model.table = torch.zeros(128)
    assert call(twin, X)[0, -1] == 1
    assert captures.count == 2


def test_a_table_of_another_length_is_not_read(captures):
    twin = CapturedModel(Tabled().eval())
    for length in (3, 5, 3, 5):
        assert call(twin, torch.zeros(length)).tolist() == list(range(length))
    assert captures.count == 4  # a graph would have read the table that was there before


def test_what_changes_again_and_again_runs_as_before(captures, monkeypatch):
    monkeypatch.setattr(captured_model_torch, "RENEWALS", 2)
    twin = CapturedModel(Scaling().eval()).prepare((X,), {})
    for factor in range(2):
        twin.model.weight = nn.Parameter(torch.full((), float(factor)))
        assert call(twin, X)["scaled"][0, 0] == factor
    twin.model.weight = nn.Parameter(torch.full((), 7.0))
    with pytest.warns(RuntimeWarning, match="again and again"):
        assert call(twin, X)["scaled"][0, 0] == 7
    assert captures.count == 3


def test_buffers_that_the_first_call_adds_are_no_obstacle(captures):
    class Late(nn.Module):
        def forward(self, x):
            if not hasattr(self, "one"):
                self.register_buffer("one", torch.ones(()))
            return x + self.one

    twin = CapturedModel(Late().eval())
    assert call(twin, X)[0, 0] == 2
    twin.model.one.fill_(5)
    assert call(twin, X)[0, 0] == 6
    twin.model.one = torch.zeros(())
    assert call(twin, X)[0, 0] == 1


# ---------------------------------------------------------------- as a model


def test_preparing_is_told_apart(captures):
    twin = CapturedModel(mlp().eval())
    assert preparations_of(twin) == ()
    (prepared,) = preparations_of(twin.prepare((X,), {}))
    assert (prepared.what, prepared.seconds) == ("captured", 0.5)
    assert prepared.nbytes == 64 + X.nbytes  # of the graph, and of the inputs


def test_a_copy_is_captured_when_it_is_first_called(captures):
    twin = CapturedModel(Scaling().eval()).prepare((X,), {})
    for second in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert second.preparations == ()
        with torch.no_grad():
            second.model.weight.fill_(9)
        assert call(second, X)["scaled"][0, 0] == 9
        assert call(twin, X)["scaled"][0, 0] == 1
    assert captures.count == 3


def test_its_layers_are_not_to_be_touched(captures):
    twin = CapturedModel(mlp())
    assert "it is compiled" in why_no_module(twin)
    assert list(TorchAdapter().watchable_modules(twin)) == [""]


def test_kernels_can_be_compiled_first(captures, monkeypatch):
    graphs = []

    def counting(graph, examples):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(captured_model_torch, "BACKEND", counting)
    model = mlp().eval()
    twin = CapturedModel(model, compile=True).prepare((X,), {})
    torch.testing.assert_close(call(twin, X), call(model, X))
    assert len(graphs) == 1


# ---------------------------------------------------------------- on a device


@needs_cuda
@pytest.mark.parametrize("compile", [False, True])
def test_a_device_replays(compile):
    model = mlp().eval().cuda()
    twin = CapturedModel(model, compile=compile).prepare((X.cuda(),), {})
    inputs = [X.cuda() * factor for factor in (1, -2, 3)]
    outputs = [call(twin, x) for x in inputs]
    for x, output in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(output, call(model, x), rtol=1e-4, atol=1e-4)
    assert twin.preparations[0].nbytes > 0


@needs_cuda
def test_a_device_keeps_state_in_order():
    twin = CapturedModel(Stateful().eval().cuda()).prepare((X.cuda(),), {})
    assert [call(twin, X.cuda())[0, 0].item() for _ in range(3)] == [2, 3, 4]


@needs_cuda
def test_a_device_replays_on_any_stream():
    model = mlp().eval().cuda()
    twin = CapturedModel(model).prepare((X.cuda(),), {})
    outputs, streams = [], [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for factor in range(6):
        with torch.cuda.stream(streams[factor % 2]):
            outputs.append(call(twin, X.cuda() * factor))
    torch.cuda.synchronize()
    for factor, output in enumerate(outputs):
        expected = call(model, X.cuda() * factor)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


@needs_cuda
def test_a_device_replays_several_kinds_in_any_order():
    model = mlp().eval().cuda()
    twin = CapturedModel(model)
    for rows in (1, 5, 3, 5, 1, 3):
        x = torch.randn(rows, 128, device="cuda")
        torch.testing.assert_close(call(twin, x), call(model, x), rtol=1e-4, atol=1e-4)
    assert len(twin.preparations) == 3


@needs_cuda
def test_a_device_sees_autocast():
    model = mlp().eval().cuda()
    twin = CapturedModel(model)
    x = torch.randn(4, 128, device="cuda")
    plain = call(twin, x)
    with torch.autocast("cuda", torch.bfloat16):
        cast, expected = call(twin, x), call(model, x)
    assert (plain.dtype, cast.dtype) == (torch.float32, expected.dtype)
    torch.testing.assert_close(cast, expected)


@needs_cuda
def test_a_device_takes_other_weights():
    model = mlp().eval().cuda()
    twin, x = CapturedModel(model), torch.randn(4, 128, device="cuda")
    call(twin, x)
    model[0].weight.data = torch.randn_like(model[0].weight)
    torch.testing.assert_close(call(twin, x), call(model, x), rtol=1e-4, atol=1e-4)
