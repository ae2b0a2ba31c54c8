import pytest
from parts import require_part

torch = require_part("torch")

from tinytorch.measure.ceilings_torch import CudaEventClock, device_flush, threaded_flush
from tinytorch.measure.timing import ColdClock, cache_flush

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_all_threads_read_the_whole_buffer(monkeypatch):
    summed = []
    monkeypatch.setattr(torch.Tensor, "sum", lambda self: summed.append(self.nbytes))
    threaded_flush(4096)()
    assert summed == [4096]


def test_with_torch_its_threads_read(monkeypatch):
    monkeypatch.setattr("tinytorch.measure.timing.flushed_bytes", lambda: 4096)
    assert cache_flush("cpu").__qualname__.startswith("threaded_flush")


@needs_cuda
def test_a_device_finds_nothing_in_its_cache():
    """A tensor that fits into the L2 cache is read more slowly when it is not there any more."""
    held = torch.cuda.get_device_properties(0).L2_cache_size
    tensor = torch.ones(held // 4 // 4, device="cuda")
    clock, flush = CudaEventClock(torch.device("cuda", 0)), device_flush("cuda:0")

    def wait():  # so that queueing the call is no part of its time, cold or warm
        torch.cuda._sleep(200_000)

    def empty_and_wait():
        flush()
        wait()

    warm, cold = ColdClock(clock, wait), ColdClock(clock, empty_and_wait)
    seconds = {each: [each.time(tensor.sum, 1) for _ in range(31)] for each in (warm, cold)}
    assert sorted(seconds[cold])[15] > sorted(seconds[warm])[15]


@needs_cuda
def test_what_emptying_takes_is_no_part_of_the_time():
    flush = device_flush("cuda:0")
    clock = CudaEventClock(torch.device("cuda", 0))
    flush()
    nothing = ColdClock(clock, flush)
    nothing.time(lambda: None, 3)
    empty_s = min(nothing.time(lambda: None, 1) for _ in range(20))
    flush_s = min(clock.time(flush, 1) for _ in range(20))
    assert empty_s < flush_s
