"""The monitor around a model on a CUDA device: times of the device, and no request waits for it."""

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.monitoring.monitor import Monitor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LONG_CYCLES = 2_000_000_000
"""About a second on a device of 2 GHz."""


def layers():
    wide = [torch.nn.Linear(2048, 2048) for _ in range(3)]
    return torch.nn.Sequential(*wide, torch.nn.Linear(2048, 4)).eval().cuda()


@torch.no_grad()
def test_a_sampled_call_is_not_waited_for():
    model, x = layers(), torch.ones(8, 2048, device="cuda")
    model(x)
    torch.cuda.synchronize()
    with Monitor(model, sample=1.0) as monitor:
        torch.cuda._sleep(LONG_CYCLES)
        asleep = torch.cuda.Event()
        asleep.record()
        with monitor.request():
            model(x)
        assert not asleep.query(), "the host waited for the device"
        assert monitor.snapshot().sampled == 0, "a call that has not ended was read"
        torch.cuda.synchronize()
        seen = monitor.snapshot()
    assert (seen.sampled, seen.faults, seen.requests.n) == (1, 0, 1)


@torch.no_grad()
def test_times_are_those_of_the_device():
    """A call of the model is as long as by events around it, and layers are no longer than it."""
    model, x = layers(), torch.ones(4096, 2048, device="cuda")
    for _ in range(5):
        model(x)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    by_events = []
    with Monitor(model, sample=1.0) as monitor:
        for _ in range(20):
            torch.cuda._sleep(2_000_000)  # kernels wait in the queue, launching does not count
            begun.record()
            model(x)
            ended.record()
            ended.synchronize()
            by_events.append(begun.elapsed_time(ended) / 1e3)
        seen = monitor.snapshot()
    assert seen.faults == 0
    assert seen.sampled == seen.latency.n == 20
    # Events of the monitor lie between those around the call.
    assert seen.sampled_s == pytest.approx(np.sum(by_events), rel=0.2)
    assert seen.sampled_s <= np.sum(by_events)
    own = {each.path: each.self_s for each in seen.layers}
    assert set(own) >= {"0", "1", "2", "3"}
    assert 0 < sum(own.values()) <= seen.sampled_s * 1.001
    assert min(own["0"], own["1"], own["2"]) > own["3"]
