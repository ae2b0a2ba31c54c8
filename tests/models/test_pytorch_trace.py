from threading import Thread

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.errors import MeasurementError
from tinytorch.models import pytorch_trace
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_trace import MARK, KernelTrace
from tinytorch.models.workload import Workload
from tinytorch.profiling.model_profile import profile_workload


@pytest.fixture(autouse=True)
def _nothing_stays_traced():
    """Check that the profiler is off; where it stays on, no later test can trace anything."""
    yield
    is_on = torch.autograd._profiler_enabled()
    if is_on:
        torch._C._autograd._disable_profiler()
    assert not is_on


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def mark(number, at):
    return {"cat": "user_annotation", "name": f"{MARK}{number}", "ts": at, "dur": 1.0}


def launch(which, at, kind="cuda_runtime"):
    return {"cat": kind, "name": "a launch", "ts": at, "dur": 3.0, "args": {"correlation": which}}


def kernel(which, at, us, kind="kernel", device=0):
    args = {"correlation": which, "device": device}
    return {"cat": kind, "name": "a kernel", "ts": at, "dur": us, "args": args}


def read(*events):
    trace = KernelTrace("cuda:0")
    trace._read(events)
    return trace


def test_a_kernel_counts_where_it_was_launched():
    trace = read(
        {"ph": "M", "name": "process_name"},
        mark(0, 10), launch(7, 11), mark(1, 15), launch(8, 16, "cuda_driver"), mark(2, 20),
        kernel(7, 100, 50), kernel(8, 400, 30, "gpu_memcpy"),
    )  # fmt: skip
    assert trace.seconds(0, 1) == pytest.approx(50e-6)
    assert trace.seconds(1, 2) == pytest.approx(30e-6)
    assert trace.seconds(0, 2) == pytest.approx(80e-6)
    assert trace.seconds(1, 1) == 0.0


def test_kernels_at_the_same_time_count_once():
    events = [mark(0, 0), launch(1, 1), launch(2, 2), launch(3, 3), mark(1, 9)]
    trace = read(*events, kernel(1, 100, 50), kernel(2, 120, 10), kernel(3, 140, 30))
    assert trace.seconds(0, 1) == pytest.approx(70e-6)


def test_other_devices_and_kernels_outside_of_marks_do_not_count():
    events = [launch(1, 1), mark(0, 2), launch(2, 3), mark(1, 5), launch(3, 6)]
    kernels = [kernel(1, 10, 10), kernel(2, 30, 10, device=1), kernel(3, 50, 10)]
    assert read(*events, *kernels).seconds(0, 1) == 0.0


def test_a_kernel_without_a_launch_counts_where_it_ran():
    assert read(mark(0, 5), kernel(4, 7, 2), mark(1, 9)).seconds(0, 1) == pytest.approx(2e-6)


def test_where_nothing_is_seen_it_says_so():
    assert not read(mark(0, 5), mark(1, 9)).has_kernels
    assert read(mark(0, 5), kernel(4, 7, 2)).has_kernels


@pytest.fixture
def no_device(monkeypatch):
    """Let a processor, which has no kernels, be traced; the trace is a real one."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


def test_torch_writes_marks_as_they_are_read(no_device):
    trace = KernelTrace("cuda:0")
    with trace:
        first = trace.mark()
        nn.Linear(4, 4)(torch.ones(2, 4))
        second = trace.mark()
    assert not trace.has_kernels
    assert trace._moments[first] < trace._moments[second]
    assert trace.seconds(first, second) == 0.0


def test_marks_of_other_threads_lie_between_those_around_them(no_device):
    found = []
    with KernelTrace("cuda:0") as trace:
        first = trace.mark()
        other = Thread(target=lambda: found.append(trace.mark()))
        other.start()
        other.join()
        last = trace.mark()
    assert trace._moments[first] < trace._moments[found[0]] < trace._moments[last]


def test_a_mark_that_was_traced_late_does_not_overtake_those_of_other_threads(no_device):
    trace = KernelTrace("cuda:0")
    trace._marked_us = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0, 4: 5.0}
    found = trace._with_lost({0: 1200.0, 2: 1032.0 + 200.0})  # tracing took 190 us, then 2 us more
    assert found[0] < found[1] < found[2]
    assert found[3] == found[2] + 10.0
    assert found[4] == found[0] - 5.0


def test_where_torch_cannot_trace_nothing_is_seen(no_device, monkeypatch):
    def failing(**settings):
        raise RuntimeError("Can't be nested")

    monkeypatch.setattr(pytorch_trace, "profile", failing)
    with KernelTrace("cuda:0") as trace:
        begin = trace.mark()
    assert not trace.has_kernels
    with pytest.raises(MeasurementError, match="nothing was traced"):
        trace.seconds(begin, begin)


@pytest.mark.filterwarnings("ignore")
def test_the_trace_of_somebody_else_is_left_alone(no_device):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        with KernelTrace("cuda:0") as trace:
            trace.mark()
        torch.ones(3) * 2
    assert not trace.has_kernels
    assert "aten::mul" in {each.key for each in theirs.key_averages()}


class WaitingProfile(torch.profiler.profile):
    """Torch's own, which waits for the device when it ends, as it does on a machine with CUDA."""

    def __enter__(self):
        started = super().__enter__()
        self.profiler.use_device = "cuda"
        return started


class BrokenProfile(WaitingProfile):
    """One that cannot be ended."""

    def stop(self):
        raise RuntimeError("CUPTI is out of order")


@pytest.fixture(params=[torch.profiler.profile, WaitingProfile, BrokenProfile])
def out_of_order(request, monkeypatch):
    """Let the device fail as soon as something is traced; the profiler is a real one."""

    def synchronize(device=None):
        if torch.autograd._profiler_enabled():
            raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(pytorch_trace, "profile", request.param)
    return synchronize


def fail_while_traced():
    assert torch.autograd._profiler_enabled()
    raise ValueError("the model")


@pytest.mark.usefixtures("out_of_order")
def test_the_error_of_a_model_is_not_hidden_by_that_of_its_device():
    with pytest.raises(ValueError, match="the model"), KernelTrace("cuda:0"):
        fail_while_traced()


@pytest.mark.usefixtures("out_of_order")
def test_the_error_of_a_device_is_raised():
    with pytest.raises(RuntimeError, match="device-side"), KernelTrace("cuda:0"):
        assert torch.autograd._profiler_enabled()


def test_a_profiler_that_cannot_be_ended_says_so(no_device, monkeypatch):
    monkeypatch.setattr(pytorch_trace, "profile", BrokenProfile)
    with pytest.raises(RuntimeError, match="CUPTI"), KernelTrace("cuda:0"):
        assert torch.autograd._profiler_enabled()


@pytest.mark.usefixtures("out_of_order")
def test_after_an_error_the_next_block_is_traced(monkeypatch):
    with pytest.raises(ValueError, match="the model"), KernelTrace("cuda:0"):
        raise ValueError("the model")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(pytorch_trace, "profile", torch.profiler.profile)
    with KernelTrace("cuda:0") as trace:
        begin = trace.mark()
    assert trace.seconds(begin, begin) == 0.0


def test_a_processor_has_no_kernels():
    assert TorchAdapter().kernel_trace("cpu") is None


class Waiting(nn.Module):
    """A model that waits for its device in the middle of a call, and then goes on slowly."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(30)))

    def forward(self, x):
        if x.sum() > 1e30:
            return x
        return self.layers(x)


@needs_cuda
def test_a_model_that_waits_for_its_device_is_traced():
    model = Waiting().cuda().eval()
    found = profile_workload(
        Workload("waiting", model, (torch.ones(2, 64, device="cuda"),)), runs=20, ceilings=False
    )
    assert any("the times of layers are those of kernels in a trace" in x for x in found.notes)
    assert found.overhead is None
    assert found.idle_share > 0.3  # thirty tiny layers: launching takes longer than computing
    own = sum(layer.self_s for layer in found.layers)
    assert own + found.unattributed_s == pytest.approx(found.busy.median, rel=0.2)
    products = [x for x in found.operations if x.kind == "aten.addmm"]
    assert len(products) == 30
    assert 0 < sum(x.duration for x in products) < 1.5 * found.busy.median
