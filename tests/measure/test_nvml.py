import sys
from types import SimpleNamespace

import pytest
from scripted_nvml import ScriptedNvml

from tinytorch.errors import MeasurementError
from tinytorch.measure.energy import find_nvml
from tinytorch.measure.gpu import UNAVAILABLE, identity, open_nvml


@pytest.fixture(autouse=True)
def _no_torch_and_all_devices(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def fake_torch(uuid, devices=2):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: devices,
        current_device=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(uuid=uuid and f"{uuid}-{index}"),
    )
    return SimpleNamespace(cuda=cuda)


def test_a_number_is_asked_for_by_name_and_kind():
    library = ScriptedNvml(
        numbers={"nvmlDeviceGetPowerUsage": 700_000, ("nvmlDeviceGetClockInfo", 1): 9}
    )
    device = open_nvml("cuda:0", library)
    assert device.number("nvmlDeviceGetPowerUsage") == 700_000
    assert device.number("nvmlDeviceGetClockInfo", 1) == 9
    assert device.number("nvmlDeviceGetClockInfo", 2) is None


def test_what_an_older_library_lacks_is_not_known():
    device = open_nvml("cuda:0", ScriptedNvml(missing=("nvmlDeviceGetPowerUsage",)))
    assert device.number("nvmlDeviceGetPowerUsage") is None
    with pytest.raises(MeasurementError, match="Not Supported"):
        device.ask("nvmlDeviceGetTemperature", 0)


def test_without_a_driver_there_is_a_reason():
    with pytest.raises(UNAVAILABLE, match="Driver Not Loaded"):
        open_nvml("cuda:0", ScriptedNvml(status=9))


def test_without_the_package_there_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(UNAVAILABLE, match="nvidia-ml-py"):
        open_nvml("cuda:0")


def test_the_installed_package_is_asked(monkeypatch):
    library = ScriptedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert open_nvml("cuda:1").library is library
    assert library.asked == [1]


# ---------------------------------------------------------------- which device


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda", None, 0),
        ("cuda:1", None, 1),
        ("cuda:1", "3,2", 2),
        ("cuda:0", " 5 , GPU-abc", 5),
        ("cuda:1", "5,GPU-abc", "GPU-abc"),
    ],
)
def test_the_environment_says_which_devices_a_program_sees(monkeypatch, device, visible, expected):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    library = ScriptedNvml()
    assert find_nvml(device, library)[1] == ()
    assert library.asked == [expected]


@pytest.mark.parametrize(("device", "visible"), [("cuda:1", "3"), ("cuda:0", "")])
def test_a_device_that_the_program_does_not_see_is_a_reason(monkeypatch, device, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    meters, (reason,) = find_nvml(device, ScriptedNvml())
    assert meters == ()
    assert "CUDA_VISIBLE_DEVICES" in reason


def test_a_name_without_a_number_is_a_reason():
    assert find_nvml("cuda:first", ScriptedNvml())[0] == ()


def test_pytorch_knows_best_which_device_it_is(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setitem(sys.modules, "torch", fake_torch("abc"))
    assert identity("cuda:0") == "GPU-abc-0"
    assert identity("cuda") == "GPU-abc-1"
    with pytest.raises(ValueError, match="there are 2 devices"):
        identity("cuda:2")


def test_a_pytorch_without_unique_names_leaves_it_to_the_environment(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(None))
    monkeypatch.setattr(
        sys.modules["torch"].cuda, "get_device_properties", lambda index: SimpleNamespace()
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert identity("cuda:1") == 7
