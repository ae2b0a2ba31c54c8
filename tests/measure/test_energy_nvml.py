import sys
from types import SimpleNamespace

import pytest
from scripted_nvml import ScriptedNvml

from tinytorch.errors import MeasurementError
from tinytorch.measure.energy import find_nvml


@pytest.fixture(autouse=True)
def _no_torch_and_all_devices(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_millijoules_become_joules():
    library = ScriptedNvml(counted=[0, 2**40, 2**40 + 1500])
    (meter,), reasons = find_nvml("cuda:0", library)
    assert meter.joules_between(meter.read(), meter.read()) == pytest.approx(1.5)
    assert (meter.name, reasons) == ("NVML cuda:0", ())


@pytest.mark.parametrize(("status", "text"), [(3, "Not Supported"), (9, "Driver Not Loaded")])
def test_what_the_library_says_is_the_reason(status, text):
    assert find_nvml("cuda:0", ScriptedNvml(status=status)) == ((), (f"NVML cuda:0: {text}",))


def test_an_error_without_a_text_has_a_number():
    assert find_nvml("cuda:0", ScriptedNvml(status=77)) == ((), ("NVML cuda:0: error 77",))


def test_a_library_without_the_counter_is_a_reason():
    meters, (reason,) = find_nvml(
        "cuda:0", SimpleNamespace(nvmlInit=lambda: None, NVMLError=OSError)
    )
    assert meters == ()
    assert "nvmlDeviceGetHandleByIndex" in reason


def test_an_error_later_is_raised():
    library = ScriptedNvml()
    (meter,), _ = find_nvml("cuda:0", library)
    library.status = 3
    with pytest.raises(MeasurementError, match="Not Supported"):
        meter.read()
