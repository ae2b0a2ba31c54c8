import json
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

from tinytorch.comparison import resources
from tinytorch.comparison.resources import NOTHING_RAN, Resources, measure_resources
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import FIRST_CALL, Preparation, Workload

torch = require_part("torch")
nn = torch.nn


def core_workload(width=64, batch=8):
    model = Sequential(Linear(32, width, rng=0), ReLU(), Linear(width, 4, rng=0))
    return Workload("mlp", model, (Tensor(np.zeros((batch, 32), np.float32)),))


def torch_workload(dtype=torch.float32):
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(dtype)
    return Workload("mlp", model, (torch.zeros(8, 32, dtype=dtype),))


PARAMETERS = (32 * 64 + 64 + 64 * 4 + 4) * 4


@pytest.mark.parametrize("workload", [core_workload(), torch_workload()], ids=["core", "pytorch"])
def test_bytes_are_those_that_are_really_there(workload):
    found = measure_resources(workload)
    assert found.parameter_bytes == PARAMETERS
    inputs, hidden, output = 8 * 32 * 4, 8 * 64 * 4, 8 * 4 * 4
    # The hidden layer once or, while an activation is computed from it, twice.
    least, most = PARAMETERS + inputs + hidden, PARAMETERS + inputs + 3 * hidden + output
    assert least < found.peak_bytes <= most
    # A table of names stands before the numbers.
    assert PARAMETERS < found.file_bytes < PARAMETERS + 500
    assert found.examples == 8
    assert found.device_peak_bytes is None
    assert dict(found.not_measured) == {"device_peak_bytes": "the model runs on a processor"}


def test_half_precision_takes_half_of_everything():
    whole, half = (measure_resources(torch_workload(d)) for d in (torch.float32, torch.bfloat16))
    assert half.parameter_bytes * 2 == whole.parameter_bytes
    assert half.peak_bytes * 2 == whole.peak_bytes
    assert half.file_bytes < 0.6 * whole.file_bytes


def test_a_second_call_counts_not_the_first():
    class Lazy(Module):
        """Makes something large the first time."""

        def __init__(self):
            self.ready = False

        def forward(self, x):
            y = x if self.ready else x @ Tensor(np.ones((32, 100_000), np.float32))
            self.ready = True
            return (y + 1).sum(axis=1, keepdims=True)

    x = Tensor(np.zeros((8, 32), np.float32))
    assert measure_resources(Workload("lazy", Lazy(), (x,))).peak_bytes < 10_000


@pytest.mark.parametrize(("was_called", "expected"), [(False, 2), (True, 1)])
def test_a_model_that_was_called_before_is_called_once(was_called, expected):
    calls = []

    def model(x):
        calls.append(1)
        return x + 1

    workload = Workload("plus", model, (Tensor(np.ones((2, 3), np.float32)),))
    found = measure_resources(workload, was_called=was_called)
    assert len(calls) == expected
    assert found.examples == 2


def test_the_peak_of_long_calls_is_the_same_and_no_operation_is_recorded(monkeypatch):
    recorded = measure_resources(torch_workload())
    adapter = type(adapter_for(torch_workload().model))
    monkeypatch.setattr(adapter, "record", None)
    assert measure_resources(torch_workload(), call_s=3.0) == recorded


def test_long_calls_of_no_framework_have_no_peak():
    class Strange(nn.Module):
        def forward(self, x):
            return x

    found = measure_resources(Workload("strange", Strange(), (torch.ones(2),)), call_s=3.0)
    assert found.peak_bytes is None
    assert found.not_measured["peak_bytes"] == NOTHING_RAN


def test_the_model_is_left_as_it_was():
    workload = torch_workload()
    before = {name: value.clone() for name, value in workload.model.state_dict().items()}
    workload.model[0].weight.grad = torch.ones(64, 32)
    measure_resources(workload)
    after = workload.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert workload.model[0].weight.grad.sum() == 64 * 32


def test_the_file_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert measure_resources(core_workload()).file_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_to_is_a_reason(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    found = measure_resources(core_workload())
    assert found.file_bytes is None
    assert "FileNotFoundError" in found.not_measured["file_bytes"]
    assert found.peak_bytes > 0


def test_a_model_that_raises_has_no_peak_but_a_size():
    workload = replace(core_workload(), inputs=(Tensor(np.zeros((8, 31), np.float32)),))
    found = measure_resources(workload)
    assert (found.peak_bytes, found.examples) == (None, None)
    assert found.parameter_bytes == PARAMETERS
    assert "(8, 31)" in found.not_measured["peak_bytes"]
    assert found.not_measured["examples"] == found.not_measured["peak_bytes"]


def test_code_of_no_framework_is_not_measured():
    found = measure_resources(Workload("sum", lambda x: x.sum(), (np.ones((3, 2)),)))
    assert found.peak_bytes is None
    assert found.not_measured["peak_bytes"] == NOTHING_RAN
    assert "nothing to write" in found.not_measured["file_bytes"]
    assert "axis 0" in found.not_measured["examples"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated:UserWarning")
def test_packed_parameters_are_not_taken_for_none():
    model = nn.Sequential(nn.Linear(32, 64), torch.ao.nn.quantized.dynamic.Linear(64, 4))
    found = measure_resources(Workload("packed", model, (torch.zeros(8, 32),)))
    # The values, a scale and a zero point, and the bias.
    assert found.parameter_bytes == (32 * 64 + 64) * 4 + 64 * 4 + 8 + 4 * 4
    assert found.peak_bytes > found.parameter_bytes
    assert found.file_bytes > (32 * 64 + 64) * 4 + 64 * 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated:UserWarning")
def test_packed_parameters_that_nobody_can_unpack_are_not_counted(monkeypatch):
    model = nn.Sequential(nn.Linear(32, 64), torch.ao.nn.quantized.dynamic.Linear(64, 4))

    def fail(module):
        raise RuntimeError("no unpacking")

    monkeypatch.setattr("tinytorch.models.pytorch.packed_weights", fail)
    found = measure_resources(Workload("packed", model, (torch.zeros(8, 32),)))
    assert (found.parameter_bytes, found.peak_bytes) == (None, None)
    assert "holds packed" in found.not_measured["parameter_bytes"]


def test_a_stop_of_the_user_is_no_reason():
    def stop(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_resources(Workload("stop", stop, (np.ones(2),)))


def test_what_was_measured_on_a_device_is_given(monkeypatch):
    workload = core_workload()
    adapter = type(adapter_for(workload.model))
    record = adapter.record

    def on_device(self, *args, **kwargs):
        assert kwargs["device"] == "cuda:0"
        return replace(record(self, *args, **kwargs), device_peak_bytes=12345)

    monkeypatch.setattr(adapter, "record", on_device)
    found = measure_resources(workload, device="cuda:0")
    assert found.device_peak_bytes == 12345
    assert dict(found.not_measured) == {}


def test_resources_survive_json():
    found = measure_resources(core_workload())
    assert Resources.from_dict(json.loads(json.dumps(found.to_dict()))) == found


# ---------------------------------------------------------------- on a device


@pytest.fixture
def on_device(monkeypatch):
    """Let a model be on a device where one call more needs 1000 bytes."""
    workload = torch_workload()
    adapter = type(adapter_for(workload.model))
    record = adapter.record
    monkeypatch.setattr(adapter, "device", lambda self, model, inputs, **names: "cuda:0")
    monkeypatch.setattr(
        adapter,
        "record",
        lambda self, model, step, *, device, inputs: replace(
            record(self, model, step, device="cpu", inputs=inputs), device_peak_bytes=5000
        ),
    )
    monkeypatch.setattr(resources, "peak_during", lambda place, run: run() is None or 1000)
    return workload


def test_the_peak_is_that_of_a_call_that_nobody_records(on_device):
    assert measure_resources(on_device).device_peak_bytes == 1000


def test_a_long_call_is_made_once_on_a_device_and_nobody_looks_into_it(on_device, monkeypatch):
    calls = []
    on_device.model.register_forward_pre_hook(lambda *_: calls.append(1))
    found = measure_resources(on_device, was_called=True, call_s=3.0)
    assert len(calls) == 1
    assert (found.device_peak_bytes, found.peak_bytes, found.examples) == (1000, None, 8)
    assert dict(found.not_measured) == {"peak_bytes": resources.TAKES_LONG}


def test_the_peak_includes_what_stays_taken(on_device):
    on_device.model.preparations = (Preparation("captured", 1.0, 300),)
    found = measure_resources(on_device)
    assert found.device_peak_bytes == 1300
    assert found.peak_bytes is None
    assert dict(found.not_measured) == {"peak_bytes": resources.INSIDE_OF_GRAPHS}
    seen = (Preparation(FIRST_CALL, 1.0), Preparation(FIRST_CALL, 1.0, 7))
    assert measure_resources(on_device, preparations=seen).device_peak_bytes == 1007


def test_what_nobody_counted_is_said_beside_the_peak(on_device):
    on_device.model.preparations = (Preparation("compiled", 1.0),)
    found = measure_resources(on_device)
    assert found.device_peak_bytes == 1000
    assert "compiled" in found.not_measured["device_peak_bytes"]


def test_a_call_that_fails_on_the_device_leaves_a_reason(on_device, monkeypatch):
    def fail(place, run):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(resources, "peak_during", fail)
    found = measure_resources(on_device)
    assert found.device_peak_bytes is None
    assert found.not_measured["device_peak_bytes"] == "RuntimeError: out of memory"


def test_a_compiled_model_is_counted_as_it_is_written():
    plain, compiled = torch_workload(), torch_workload()
    compiled.model.compile(backend="eager")
    found = measure_resources(compiled)
    assert found.peak_bytes == measure_resources(plain).peak_bytes
    assert found.not_measured["peak_bytes"] == resources.AS_WRITTEN


@pytest.mark.parametrize(
    ("found", "memory"),
    [
        (Resources(parameter_bytes=100, peak_bytes=130), 130),
        (Resources(parameter_bytes=100, peak_bytes=130, device_peak_bytes=40), 140),
        (Resources(peak_bytes=130, device_peak_bytes=40), None),
        (Resources(parameter_bytes=100), None),
    ],
)
def test_memory_is_weights_and_what_a_call_needs_beside_them(found, memory):
    assert found.memory_bytes == memory
