"""Comparisons on a CUDA device from beginning to end; elsewhere there is nothing to test."""

import gc
import math
import warnings
from statistics import median
from time import perf_counter

import pytest
from parts import require_part
from two_sides import nn, torch

from tinytorch import compare, profile_model
from tinytorch.comparison.resources import measure_resources
from tinytorch.errors import ModelError
from tinytorch.measure.ceilings_torch import CudaEventClock
from tinytorch.measure.estimate import FASTER, SLOWER
from tinytorch.measure.memory import private_pool_bytes
from tinytorch.measure.timing import CACHES, has_unseen_work
from tinytorch.models.workload import Preparation, Workload

require_part("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

QUICK = {"budget_s": 0.3}
DEVICE = "cuda:0"


def layers(width=64, count=20):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(count)]).to(DEVICE).eval()


def batch(width=64, rows=4):
    return torch.ones(rows, width, device=DEVICE)


class Captured(nn.Module):
    """A model as a CUDA graph."""

    def __init__(self, model, x):
        super().__init__()
        self.model, self.x = model, x.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            for _ in range(3):
                model(self.x)
        torch.cuda.current_stream().wait_stream(stream)
        gc.collect()  # which recording does as well: graphs of others must not go in between
        torch.cuda.empty_cache()
        before = private_pool_bytes(DEVICE)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.output = model(self.x)
        taken = private_pool_bytes(DEVICE) - before
        self.preparations = (Preparation("captured", 0.01, taken),)

    def forward(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.output.clone()


def test_more_work_on_the_device_is_slower():
    small, large = ((layers(width), batch(width, 512)) for width in (1024, 4096))
    found = compare(small, large, **QUICK)
    assert found.verdict == SLOWER
    assert (found.clock, found.is_on_device) == ("wall", True)
    assert found.environment["devices"][DEVICE]["name"]


def test_a_captured_model_is_faster_and_is_never_copied():
    model, x = layers(), batch()
    captured = Captured(model, x)
    found = compare(model, captured, inputs=x, budget_s=2.0)
    assert found.verdict == FASTER
    assert found.outputs.is_identical or found.outputs.max_error < 1e-4
    assert found.preparations == ((), captured.preparations)
    assert found.break_even.low <= found.break_even.value <= found.break_even.high
    assert any("captured once" in note for note in found.notes)


def plain_loop(model, x, calls=200):
    """Return the median seconds of calls with the device synchronised before and after each."""
    seconds = []
    with torch.no_grad():
        for _ in range(calls):
            torch.cuda.synchronize()
            started = perf_counter()
            model(x)
            torch.cuda.synchronize()
            seconds.append(perf_counter() - started)
    return median(seconds)


def test_the_speedup_is_what_a_plain_synchronised_loop_shows():
    model, x = layers(), batch()
    captured = Captured(model, x)
    for each in (model, captured):
        plain_loop(each, x)
    found = compare(model, captured, inputs=x, budget_s=2.0)
    plain = plain_loop(model, x) / plain_loop(captured, x)
    # Loops one after the other, on a host that others may use: a third apart at most.
    assert plain / 1.33 < found.speedup < plain * 1.33
    assert found.throughput_ratio_low <= found.throughput_ratio <= found.throughput_ratio_high
    assert found.device_time_ratio > 0


def test_a_profile_has_latency_by_the_wall_clock_and_device_time_by_events():
    profile = profile_model(layers(), batch(), budget_s=0.2)
    assert profile.latency.median >= profile.device_time.median > 0


def test_sustained_calls_decide_about_throughput():
    model, x = layers(), batch()
    found = compare(model, Captured(model, x), inputs=x, timing="throughput", **QUICK)
    assert found.verdict == FASTER
    assert found.speedup == pytest.approx(found.throughput_ratio)
    assert found.latency_ratio < 1


def test_the_time_of_a_replayed_graph_is_that_of_its_kernels():
    model, x = layers(2048, 10), batch(2048, 2048)
    captured, clock = Captured(model, x), CudaEventClock(torch.device(DEVICE))
    with torch.no_grad():
        for each in (model, captured):
            clock.time(lambda each=each: each(x), 5)
        eager_s = min(clock.time(lambda: model(x), 5) for _ in range(5))
        replayed_s = min(clock.time(lambda: captured(x), 5) for _ in range(5))
    # Large products keep the device busy either way; not to see the replay would give nearly zero.
    assert 0.5 < replayed_s / eager_s < 1.5


def test_a_peak_is_that_of_one_side_and_includes_its_graph():
    x = batch(1024, 1024)
    held = layers(1024, 4)  # weights of somebody else, which must not count
    small, large = (
        measure_resources(Workload("w", nn.Sequential(nn.Linear(1024, width)).to(DEVICE), (x,)))
        for width in (1024, 4096)
    )
    assert 0 < small.device_peak_bytes < large.device_peak_bytes
    assert large.device_peak_bytes == pytest.approx(1024 * 4096 * 4, rel=0.5)
    captured = Captured(held, x)
    found = measure_resources(Workload("w", captured, (x,)))
    assert found.device_peak_bytes >= captured.preparations[0].nbytes > 0


def test_with_cold_caches_every_call_is_timed_alone():
    x = batch(1024)
    models = [Captured(layers(1024, count), x) for count in (4, 40)]
    cold = compare(*models, inputs=x, cache="cold", evidence=False, **QUICK)
    assert (cold.cache, cold.clock, cold.verdict) == ("cold", "wall", SLOWER)
    assert cold.pace.loops == (1, 1)
    assert cold.pace.untimed_s > 0


def test_work_on_a_stream_that_nobody_waits_for_is_noticed():
    side, left = torch.cuda.Stream(), torch.randn(4096, 4096, device=DEVICE)

    def elsewhere():
        with torch.cuda.stream(side):
            for _ in range(10):
                left @ left

    def joined():
        elsewhere()
        torch.cuda.current_stream().wait_stream(side)

    for function in (elsewhere, joined):
        function()
    torch.cuda.synchronize()
    assert has_unseen_work(elsewhere, DEVICE)
    assert not all(has_unseen_work(joined, DEVICE) for _ in range(3))


def test_models_that_fill_the_device_are_compared_without_copies():
    free, _ = torch.cuda.mem_get_info()
    width = math.isqrt(int(0.35 * free) // 4)
    models = [nn.Linear(width, width, bias=False, device=DEVICE) for _ in range(2)]
    try:
        found = compare(*models, inputs=batch(width, 1), evidence=False, **QUICK)
        assert any("room for" in note for note in found.notes)
        assert found.n >= 6
    finally:
        models.clear()
        torch.cuda.empty_cache()


def test_a_call_that_does_not_fit_says_what_it_needed():
    total = torch.cuda.mem_get_info()[1]

    class Greedy(nn.Module):
        def forward(self, x):
            return torch.empty(2 * total, dtype=torch.uint8, device=DEVICE).sum() + x

    with pytest.raises(ModelError, match=r"does not fit on cuda:0: it asked for .* GiB are free"):
        compare(Greedy(), Greedy(), inputs=batch(), **QUICK)


def test_starting_a_call_is_part_of_its_time_with_cold_caches_too():
    model, x = layers(width=8), batch(8)
    warm, cold = (compare(model, model, inputs=x, cache=cache, **QUICK) for cache in CACHES)
    assert cold.baseline.median > 0.5 * warm.baseline.median


def test_a_processor_and_a_device_share_the_wall_clock():
    found = compare((layers().cpu(), batch().cpu()), (layers(), batch()), **QUICK)
    assert found.clock == "wall"
    assert found.is_on_device
    assert found.device_times is None
    assert found.calls is not None


@pytest.mark.slow
def test_a_model_that_the_user_compiled_for_graphs_is_compared():
    model, x = layers(), batch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch imports and calls what it has deprecated
        compiled = torch.compile(model, mode="reduce-overhead")
        found = compare(model, compiled, inputs=x, **QUICK)
    assert found.verdict == FASTER
    assert found.preparations[1][0].seconds > 0
