import sys
from types import SimpleNamespace

import pytest

from tinytorch.errors import MeasurementError
from tinytorch.measure.energy_nvml import _identity, find_nvml


class Library:
    """What the driver's library does, as far as it is asked here."""

    def __init__(self, *, counted=(), status=0):
        self.counted, self.status, self.asked = list(counted), status, []
        self.nvmlErrorString = self.Explain()

    class Explain:
        restype = None

        def __call__(self, status):
            return {3: b"Not Supported", 9: b"Driver Not Loaded"}.get(status.value)

    def nvmlInit_v2(self):
        return 9 if self.status == 9 else 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        self.asked.append(index.value)
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, unique, handle):
        self.asked.append(unique.decode())
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, counted):
        if self.counted:
            counted._obj.value = self.counted.pop(0)
        return self.status


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


def test_millijoules_become_joules():
    library = Library(counted=[0, 2**40, 2**40 + 1500])
    (meter,), reasons = find_nvml("cuda:0", library)
    assert meter.joules_between(meter.read(), meter.read()) == pytest.approx(1.5)
    assert (meter.name, reasons) == ("NVML cuda:0", ())


@pytest.mark.parametrize(("status", "text"), [(3, "Not Supported"), (9, "Driver Not Loaded")])
def test_what_the_library_says_is_the_reason(status, text):
    assert find_nvml("cuda:0", Library(status=status)) == ((), (f"NVML cuda:0: {text}",))


def test_an_error_without_a_text_has_a_number():
    assert find_nvml("cuda:0", Library(status=77)) == ((), ("NVML cuda:0: error 77",))


def test_a_library_without_the_counter_is_a_reason():
    meters, (reason,) = find_nvml("cuda:0", SimpleNamespace(nvmlInit_v2=lambda: 0))
    assert meters == ()
    assert "nvmlDeviceGetHandleByIndex_v2" in reason


def test_an_error_later_is_raised():
    library = Library()
    (meter,), _ = find_nvml("cuda:0", library)
    library.status = 3
    with pytest.raises(MeasurementError, match="Not Supported"):
        meter.read()


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
    library = Library()
    assert find_nvml(device, library)[1] == ()
    assert library.asked == [expected]


@pytest.mark.parametrize(("device", "visible"), [("cuda:1", "3"), ("cuda:0", "")])
def test_a_device_that_the_program_does_not_see_is_a_reason(monkeypatch, device, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    meters, (reason,) = find_nvml(device, Library())
    assert meters == ()
    assert "CUDA_VISIBLE_DEVICES" in reason


def test_a_name_without_a_number_is_a_reason():
    assert find_nvml("cuda:first", Library())[0] == ()


def test_pytorch_knows_best_which_device_it_is(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setitem(sys.modules, "torch", fake_torch("abc"))
    assert _identity("cuda:0") == "GPU-abc-0"
    assert _identity("cuda") == "GPU-abc-1"
    with pytest.raises(ValueError, match="there are 2 devices"):
        _identity("cuda:2")


def test_a_pytorch_without_unique_names_leaves_it_to_the_environment(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(None))
    monkeypatch.setattr(
        sys.modules["torch"].cuda, "get_device_properties", lambda index: SimpleNamespace()
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert _identity("cuda:1") == 7
