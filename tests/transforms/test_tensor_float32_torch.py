import copy

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import bits_of, is_unchanged, seeded

from tinytorch.measure.ceilings_torch import multiplies_in_tf32
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_compile import compiled, graphs_of
from tinytorch.models.workload import Workload
from tinytorch.profiling.model_profile import profile_workload
from tinytorch.transforms.capture_graph import CaptureGraph
from tinytorch.transforms.compile_model import CompileModel
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.inference_mode.torch import InferenceModel
from tinytorch.transforms.tensor_float32 import TensorFloat32
from tinytorch.transforms.tensor_float32 import torch as tensor_float32_torch
from tinytorch.transforms.tensor_float32.torch import TensorFloat32Model

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Watching(nn.Module):
    """A layer that remembers whether products were TF32 when it was called."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = []

    def forward(self, x):
        self.seen.append(multiplies_in_tf32())
        if x.shape[0] == 3:
            raise ValueError("three rows")
        return self.layer(x)


@pytest.fixture
def pretended(monkeypatch):
    """Let the processor pass for a device with tensor cores: it computes in float32."""
    monkeypatch.setattr(tensor_float32_torch, "_why_not", lambda workload: "")


def on(device, *sizes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)).eval().to(device)
    return Workload("layers", model, (torch.randn(*(sizes or (8, 256)), device=device),))


def test_only_calls_of_the_model_are_tf32():
    model = TensorFloat32Model(Watching())
    model(torch.ones(2, 4))
    with pytest.raises(ValueError, match="three rows"):
        model(torch.ones(3, 4))
    assert model.seen == [True, True]
    assert not multiplies_in_tf32()
    copy.deepcopy(model)(torch.ones(2, 4))
    assert not multiplies_in_tf32()


def test_code_is_compiled_for_the_setting_of_the_call():
    settings = []

    def backend(graph, inputs):
        settings.append(multiplies_in_tf32())
        return graph.forward

    layers = seeded(nn.Linear, 4, 4)
    model = InferenceModel(TensorFloat32Model(layers))
    call = compiled(model, backend=backend, fullgraph=True)
    x = torch.ones(2, 4)
    for _ in range(2):
        assert torch.equal(call(x), layers(x))
    assert settings == [True]
    assert len(graphs_of(model, (x,)).breaks) == 0
    assert not multiplies_in_tf32()


def test_a_processor_has_no_tf32():
    case = on("cpu")
    plan = TensorFloat32().plan(case)
    assert plan.is_empty
    assert plan.skipped[0].reason == "TF32 is for CUDA devices, and it is on cpu"
    assert not isinstance(TensorFloat32().apply(case, plan), TensorFloat32Model)


def test_a_setting_that_is_there_already_is_named(monkeypatch):
    monkeypatch.setattr(TorchAdapter, "device", lambda self, model, inputs, **names: "cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (9, 0))
    monkeypatch.setattr(tensor_float32_torch, "multiplies_in_tf32", lambda: True)
    assert "TF32 already" in TensorFloat32().plan(on("cpu")).skipped[0].reason


def test_an_old_device_has_no_tf32(monkeypatch):
    monkeypatch.setattr(TorchAdapter, "device", lambda self, model, inputs, **names: "cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "Tesla T4")
    reason = TensorFloat32().plan(on("cpu")).skipped[0].reason
    assert reason == "Tesla T4 is too old to multiply TF32"


def test_it_is_not_done_twice():
    model = InferenceModel(TensorFloat32Model(on("cpu").model))
    plan = TensorFloat32().plan(Workload("twice", model, on("cpu").inputs))
    assert plan.skipped[0].reason == "its products are TF32 already"


def test_other_numbers_are_left_alone():
    case = Workload("case", nn.Linear(4, 4, dtype=torch.bfloat16), (torch.ones(1, 4).bfloat16(),))
    assert TensorFloat32().plan(case).skipped[0].reason == "it holds no float32 numbers"


@pytest.mark.usefixtures("pretended")
def test_a_trial_in_which_nothing_is_rounded_is_refused():
    case = on("cpu")
    before = bits_of(case.model)
    plan = TensorFloat32().plan(case)
    assert plan.skipped[0].reason == tensor_float32_torch.IDLE
    assert is_unchanged(case.model, before)
    assert not multiplies_in_tf32()


@needs_cuda
def test_products_are_rounded_to_eleven_bits():
    case = on("cuda")
    transform = TensorFloat32()
    plan = transform.plan(case)
    model = transform.apply(case, plan)
    assert plan.steps[0].what == "multiplies float32 numbers as TF32"
    with torch.no_grad():
        exact, rounded = case.model(*case.inputs), model(*case.inputs)
    error = float((exact - rounded).abs().max() / exact.abs().max())
    assert 1e-6 < error < transform.allowed_error


@needs_cuda
def test_a_tolerance_is_kept():
    plan = TensorFloat32(tolerance=1e-7).plan(on("cuda"))
    assert plan.is_empty
    assert "more than the 1e-07 that are allowed" in plan.skipped[0].reason


@needs_cuda
@pytest.mark.parametrize(
    "then", [InferenceMode(), CaptureGraph(), CompileModel(), CaptureGraph(compile=True)], ids=str
)
def test_what_is_done_afterwards_keeps_it(then):
    case = on("cuda")
    rounded = Workload("tf32", TensorFloat32().apply(case, TensorFloat32().plan(case)), case.inputs)
    plan = then.plan(rounded)
    assert not plan.is_empty, plan.skipped
    model = then.apply(rounded, plan)
    with torch.no_grad():
        exact, wanted, found = (each(*case.inputs) for each in (case.model, rounded.model, model))
    assert float((found - wanted).abs().max()) < 0.3 * float((wanted - exact).abs().max())


@needs_cuda
def test_a_profile_says_which_products_are_tf32():
    case = on("cuda")
    rounded = TensorFloat32().apply(case, TensorFloat32().plan(case))
    for model, dtype in ((case.model, "float32"), (rounded, "tf32")):
        assert profile_workload(Workload("layers", model, case.inputs)).dtype == dtype
