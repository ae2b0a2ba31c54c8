import os
import sys
from types import SimpleNamespace

import pytest
from scripted_nvml import ScriptedNvml

from tinytorch.measure import gpu as device_state
from tinytorch.measure.gpu import DeviceState, DeviceWatch, open_nvml, read_others, read_state

CLOCKS = {
    ("nvmlDeviceGetClockInfo", 1): 1980,
    ("nvmlDeviceGetClockInfo", 2): 3201,
    ("nvmlDeviceGetMaxClockInfo", 1): 1980,
    ("nvmlDeviceGetTemperature", 0): 51,
    "nvmlDeviceGetPowerUsage": 690_500,
    "nvmlDeviceGetCurrentClocksEventReasons": 0,
}
POWER_CAP, IDLE, HEAT = 0x4, 0x1, 0x40
US, OTHER = os.getpid(), 2**22 + 17


@pytest.fixture(autouse=True)
def _no_torch_and_all_devices(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device_state, "LOOK_EVERY_S", 0.0)


def others(library, *, are_we_on_it=True):
    return read_others(open_nvml("cuda:0", library), are_we_on_it=are_we_on_it)


def watched(looks, **settings):
    """Give a watch that has seen these clocks and reasons, one after the other."""
    numbers = dict(CLOCKS)
    numbers[("nvmlDeviceGetClockInfo", 1)] = [clock for clock, _ in looks]
    numbers["nvmlDeviceGetCurrentClocksEventReasons"] = [reasons for _, reasons in looks]
    watch = DeviceWatch("cuda:0", ScriptedNvml(numbers=numbers, **settings))
    for _ in looks:
        watch.look()
    return watch


# ---------------------------------------------------------------- one moment


def test_a_state_is_what_the_driver_says():
    found = read_state(open_nvml("cuda:0", ScriptedNvml(numbers=CLOCKS)))
    assert found == DeviceState(1980, 1980, 3201, 51, 690.5, 0)
    assert found.limits == ()


def test_what_the_driver_does_not_say_is_none():
    assert read_state(open_nvml("cuda:0", ScriptedNvml())) == DeviceState()


def test_older_libraries_have_another_name_for_the_reasons():
    numbers = {"nvmlDeviceGetCurrentClocksThrottleReasons": POWER_CAP}
    missing = ("nvmlDeviceGetCurrentClocksEventReasons",)
    library = ScriptedNvml(numbers=numbers, missing=missing)
    assert read_state(open_nvml("cuda:0", library)).limits == ("power cap",)


# ---------------------------------------------------------------- who else is there


def test_an_empty_device_has_no_others():
    assert others(ScriptedNvml()).count == 0


def test_programs_that_did_nothing_lately_are_not_busy():
    rows = [{"pid": US, "usedGpuMemory": 5}, {"pid": OTHER, "usedGpuMemory": 3 << 30}]
    found = others(ScriptedNvml(processes=rows, uses=6))  # nothing was found
    assert (found.count, found.busy_share) == (1, 0.0)
    assert others(ScriptedNvml(processes=rows, uses=3)).busy_share is None  # nobody tells


def test_our_own_program_is_none_of_the_others():
    rows = [{"pid": US, "usedGpuMemory": 5}, {"pid": OTHER, "usedGpuMemory": 3 << 30}]
    uses = [
        {"pid": OTHER, "timeStamp": 2, "smUtil": 37},
        {"pid": OTHER, "timeStamp": 1, "smUtil": 99},
        {"pid": US, "timeStamp": 3, "smUtil": 60},
    ]
    found = others(ScriptedNvml(processes=rows, uses=uses))
    assert (found.count, found.nbytes, found.busy_share) == (1, 3 << 30, pytest.approx(0.37))


def test_in_a_container_one_unknown_program_is_us():
    found = others(ScriptedNvml(processes=[{"pid": OTHER, "usedGpuMemory": 5}]))
    assert (found.count, found.nbytes, found.busy_share) == (0, None, None)
    two = others(ScriptedNvml(processes=[{"pid": OTHER}, {"pid": OTHER + 1}]))
    assert (two.count, two.busy_share) == (1, None)
    before = others(ScriptedNvml(processes=[{"pid": OTHER}]), are_we_on_it=False)
    assert before.count == 1


def test_memory_that_the_driver_hides_is_not_known():
    found = others(
        ScriptedNvml(processes=[{"pid": US}, {"pid": OTHER, "usedGpuMemory": None}], uses=None)
    )
    assert (found.count, found.nbytes, found.busy_share) == (1, None, None)


def test_a_driver_that_lists_nobody_is_not_taken_for_an_empty_device():
    assert others(ScriptedNvml(processes=None)) is None
    assert others(ScriptedNvml(missing=["nvmlDeviceGetComputeRunningProcesses"])) is None


# ---------------------------------------------------------------- while measuring


def test_a_quiet_device_leaves_nothing_to_say():
    watch = watched([(1980, 0), (1965, IDLE), (1980, 0)])
    assert watch.notes == ()
    found = watch.to_dict()
    assert found["sm_clock_mhz"] == [1965, 1980]
    assert found["power_w"] == [690.5, 690.5]
    assert (found["looks"], found["limits"]) == (3, [])


def test_a_lowered_clock_is_named_with_its_reason():
    (note,) = watched([(1980, 0), (1500, POWER_CAP), (1400, POWER_CAP | HEAT), (1980, 0)]).notes
    assert note == (
        "cuda:0 lowered its clock during the measurement: power cap, heat (hardware slowdown) "
        "(down to 1400 of 1980 MHz), in 50% of the samples"
    )


def test_a_clock_that_moves_is_named_without_a_reason():
    (note,) = watched([(1200, 0), (1980, 0)]).notes
    assert note == "the clock of cuda:0 moved between 1200 and 1980 MHz during the measurement"


@pytest.mark.parametrize(
    ("processes", "uses", "words"),
    [
        (
            [{"pid": US}, {"pid": OTHER}],
            [{"pid": OTHER, "smUtil": 37}],
            ("another process uses cuda:0 (37% busy before we began)",),
        ),
        (
            [{"pid": OTHER}, {"pid": OTHER + 1}],
            None,
            ("2 others use cuda:0 (how busy it is with that, the driver does not tell)",),
        ),
        ([{"pid": US}, {"pid": OTHER}], [{"pid": OTHER, "smUtil": 0}], ()),
        ([{"pid": US}], [], ()),
    ],
)
def test_a_busy_device_is_named(processes, uses, words):
    watch = DeviceWatch("cuda:0", ScriptedNvml(processes=processes, uses=uses))
    assert watch.notes == words


def test_where_nobody_can_be_asked_nothing_is_claimed():
    watch = DeviceWatch("cuda:0", ScriptedNvml(status=9))
    watch.look()
    assert (watch.notes, watch.states) == ((), [])
    assert watch.to_dict() == {"name": None, "not_read": "Driver Not Loaded"}


def test_looks_are_far_apart(monkeypatch):
    monkeypatch.setattr(device_state, "LOOK_EVERY_S", 1000.0)
    watch = DeviceWatch("cuda:0", ScriptedNvml(numbers=CLOCKS))
    for _ in range(5):
        watch.look()
    assert len(watch.states) == 1


def test_the_kind_of_device_is_kept(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        is_available=lambda: False,
        device_count=lambda: 0,
        get_device_name=lambda device: f"the {device}",
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert DeviceWatch("cuda:0", ScriptedNvml()).to_dict()["name"] == "the cuda:0"
