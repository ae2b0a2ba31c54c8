import pytest
from parts import require_part

from tinytorch.comparison import compare as cold_calls
from tinytorch.comparison.compare import empty_caches_between
from tinytorch.comparison.sides import LocalSide, WorkloadSide
from tinytorch.measure.timing import ColdClock, reading_overhead
from tinytorch.models.workload import Workload

torch = require_part("torch")


@pytest.fixture
def log(monkeypatch):
    """What happens, in order; a flush is cheap and leaves its place behind."""
    found = []
    monkeypatch.setattr(cold_calls, "cache_flush", lambda place: lambda: found.append(place))
    return found


def function_side(log, name="a"):
    return LocalSide(name, lambda: lambda: log.append("call"), can_rebuild=False)


def model_side(name="b"):
    return WorkloadSide(Workload("w", torch.nn.Linear(8, 8), (torch.ones(2, 8),)), name=name)


def test_caches_are_emptied_before_every_call_that_is_timed(log):
    side = function_side(log)
    empty_caches_between(side)
    log.clear()
    side.time(3, before=2)
    assert log == ["call", "call", *["cpu", *side.devices, "call"] * 3]


def test_emptying_is_no_part_of_the_time(monkeypatch, log):
    clock = [0.0]
    side = function_side(log)
    empty_caches_between(side)

    def flush():
        clock[0] += 100.0

    side.empty_caches(flush)
    assert side.time(4).seconds < 100.0
    assert clock[0] >= 400.0


def test_emptying_is_part_of_the_plan(log):
    side = model_side()
    assert side.untimed_call_s == 0
    empty_caches_between(side)
    assert side.untimed_call_s > 0


def test_single_calls_are_cold_too(log):
    side = function_side(log)
    empty_caches_between(side)
    assert isinstance(side.clock, ColdClock)
    log.clear()
    side.clock.time(side.call_untested, 2)
    happened = ["cpu", *side.devices, "call"] * 2
    assert log == happened
    assert reading_overhead(side.clock) > 0
    assert log == happened  # reading the clock has nothing to do with caches


def test_calls_that_are_too_short_to_be_timed_alone_are_named(monkeypatch, log):
    monkeypatch.setattr(cold_calls, "reading_overhead", lambda clock: 1.0)
    (note,) = empty_caches_between(function_side(log))
    assert "1% of a call of a" in note
    monkeypatch.setattr(cold_calls, "reading_overhead", lambda clock: 0.0)
    assert empty_caches_between(function_side(log)) == ()


def test_what_is_known_to_be_slow_is_not_called_to_see_that_it_is_not_short(log):
    side = function_side(log)
    side.slow_call_s = 0.8
    empty_caches_between(side)
    assert "call" not in log


def test_where_threads_of_others_cannot_be_reached_a_note_says_so(monkeypatch, log):
    monkeypatch.setattr(cold_calls, "reading_overhead", lambda clock: 0.0)
    monkeypatch.setattr(cold_calls, "usable_cores", lambda: 8)
    side = function_side(log)
    monkeypatch.delitem(cold_calls.sys.modules, "torch")
    assert empty_caches_between(side) == (
        "only the caches of one core, and those that it shares, were emptied",
    )


def test_a_model_on_a_device_has_the_caches_of_that_device(log):
    side = model_side()
    side.device = "cuda:1"
    assert side.places == ("cuda:1",)
    assert model_side().places == ("cpu",)


def test_a_function_may_compute_anywhere(monkeypatch, log):
    monkeypatch.setattr("tinytorch.comparison.sides.used_devices", lambda: (0, 2))
    assert function_side(log).places == ("cpu", "cuda:0", "cuda:2")
