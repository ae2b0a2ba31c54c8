import gc
import io
import sys
import tracemalloc
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from classic_models import KINDS, call, make_input, make_model
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.errors import SettingError
from tinytorch.measure import timing
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import WALL, DeviceClock
from tinytorch.profiling import timer as timer_module
from tinytorch.profiling.context import ProfilerContext, SimpleProfiler
from tinytorch.profiling.memory_profiler import MemoryProfiler
from tinytorch.profiling.profiler import Profiler
from tinytorch.profiling.timer import TRACING_NOTE, Timer, bound_call, refuse_lazy, timing_stats

CONTRACT = {"mean_ms", "std_ms", "min_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms", "runs"}


def nothing():
    pass


def test_measure_gives_the_keys_of_the_contract():
    stats = Timer().measure(nothing, warmup=1, runs=20)
    assert stats.keys() >= CONTRACT | {"ci_low_ms", "ci_high_ms", "outliers", "stability"}


@pytest.mark.parametrize("runs", [1, 2, 3, 9, 10, 11, 21])
def test_any_number_of_runs_works(runs):
    timer = Timer()
    stats = timer.measure(nothing, runs=runs)
    assert (stats["runs"], len(timer.measurements)) == (runs, runs)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40))
def test_statistics_are_those_of_numpy_in_milliseconds(seconds):
    stats = timing_stats(Samples("", tuple(seconds)))
    values = np.array(seconds) * 1e3
    wanted = {
        "mean_ms": values.mean(),
        "min_ms": values.min(),
        "max_ms": values.max(),
        "p50_ms": np.percentile(values, 50),
        "p95_ms": np.percentile(values, 95),
        "p99_ms": np.percentile(values, 99),
    }
    # Scaling before or after the statistics differs in the last places.
    assert {key: stats[key] for key in wanted} == pytest.approx(wanted, rel=1e-12)
    assert stats["ci_low_ms"] <= stats["p50_ms"] * (1 + 1e-12)
    assert stats["ci_high_ms"] >= stats["p50_ms"] * (1 - 1e-12)


def test_arguments_reach_the_function():
    seen = []
    Timer().measure(
        lambda *a, **k: seen.append((a, k)), warmup=1, runs=2, args=(1, 2), kwargs={"x": 3}
    )
    assert seen == [((1, 2), {"x": 3})] * 3


def test_it_is_called_exactly_as_often_as_asked():
    calls = []
    Timer().measure(lambda: calls.append(None), warmup=3, runs=4)
    assert len(calls) == 7


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_off_inside_and_as_before_afterwards(was_enabled):
    seen = []
    try:
        (gc.enable if was_enabled else gc.disable)()
        Timer().measure(lambda: seen.append(gc.isenabled()), runs=2)
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
    assert set(seen) == {False}


def test_the_collector_is_restored_when_the_function_raises():
    timer = Timer()
    with pytest.raises(ZeroDivisionError):
        timer.measure(lambda: 1 / 0)
    assert gc.isenabled()
    assert timer.measurements == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runs": 0}, "runs=0; it must be at least 1"),
        ({"runs": -3}, "runs=-3"),
        ({"runs": 2.5}, "runs=2.5; it must be a whole number"),
        ({"runs": True}, "runs=True; it must be a whole number"),
        ({"warmup": -1}, "warmup=-1; it must be at least 0"),
        (
            {"args": np.ones(3)},
            r"args is a ndarray; give a tuple of arguments, such as args=\(x,\)",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Timer().measure(nothing, **settings)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(SettingError, match="func is a int, which cannot be called"):
        Timer().measure(3)


def generator(x=None):
    yield x


async def coroutine(x=None):
    return x


class LazyForward:
    def forward(self, x=None):
        yield x


class LazyCall:
    def __call__(self, x=None):
        yield x


class CallsLazyForward(LazyForward):
    def __call__(self, x=None):
        return self.forward(x)


LAZY = [
    generator,
    coroutine,
    partial(generator, 1),
    LazyForward(),
    LazyForward().forward,
    LazyCall(),
    CallsLazyForward(),
]


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize(
    "measure",
    [
        refuse_lazy,
        Timer().measure,
        SimpleProfiler().profile,
        ProfilerContext().profile_function,
        MemoryProfiler().profile,
        lambda model: Profiler().measure_latency(model, 1),
        lambda model: Profiler().profile_layer(model, (1, 1)),
        lambda model: Profiler().profile_forward_pass(model, 1),
    ],
)
def test_what_returns_before_it_has_done_its_work_is_refused(measure, lazy):
    with pytest.raises(SettingError, match="is a coroutine or generator: calling it only makes"):
        measure(lazy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_timed_also_with_only_forward(kind):
    model, x = make_model(kind), make_input(kind)
    stats = Timer().measure(model, warmup=1, runs=3, args=(x,))
    assert stats["min_ms"] > 0


def test_timing_under_a_tracer_says_so():
    tracemalloc.start()
    try:
        stats = Timer().measure(nothing, runs=3)
    finally:
        tracemalloc.stop()
    assert TRACING_NOTE in stats["notes"]
    assert TRACING_NOTE not in Timer().measure(nothing, runs=3)["notes"]


@pytest.mark.parametrize("clock", [WALL, DeviceClock()])
def test_disturbances_are_told_whatever_the_clock(monkeypatch, clock):
    doubt = "others used the machine"
    counters = SimpleNamespace(doubts_since=lambda earlier: (doubt,))
    monkeypatch.setattr(timing, "observe", lambda: counters)
    monkeypatch.setattr(timer_module, "fitting_clock", lambda: clock)
    timer = Timer()
    assert doubt in timer.measure(nothing, runs=3)["notes"]
    assert doubt in timer.samples.notes


def test_bound_call_takes_forward_where_there_is_no_call():
    model, x = make_model("plain core"), make_input("core")
    model.inner.eval()
    np.testing.assert_array_equal(bound_call(model, (x,))().data, call(model, x).data)


# ---------------------------------------------------------------- blocks


class Clock:
    def __init__(self):
        self.now = 10.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tinytorch.profiling.timer.perf_counter", clock)
    return clock


def test_a_block_gives_milliseconds(clock):
    with Timer() as timer:
        clock.now += 0.25
    assert timer.elapsed == 250.0
    assert timer.measurements == [0.25]


def test_start_and_stop_do_the_same(clock):
    timer = Timer().start()
    clock.now += 0.5
    assert timer.stop() == timer.elapsed == 500.0


def test_elapsed_runs_inside_a_block(clock):
    with Timer() as timer:
        clock.now += 0.125
        assert timer.elapsed == 125.0
        clock.now += 0.125
    assert timer.elapsed == 250.0


def test_one_timer_may_be_entered_again_inside_its_block(clock):
    timer = Timer()
    with timer:
        clock.now += 1
        with timer:
            clock.now += 2
        assert timer.measurements == [2.0]
    assert timer.measurements == [2.0, 3.0]
    assert timer.elapsed == 3000.0


def test_a_block_stopped_by_hand_ends_quietly(clock):
    with Timer() as timer:
        clock.now += 1
        timer.stop()
        clock.now += 1
    assert timer.measurements == [1.0]


def test_the_collector_is_off_in_a_block_and_restored_by_an_exception():
    with Timer():
        assert not gc.isenabled()
    with pytest.raises(ZeroDivisionError), Timer() as timer:
        1 / gc.isenabled()
    assert gc.isenabled()
    assert len(timer.measurements) == 1


def test_stop_without_start_says_so():
    with pytest.raises(SettingError, match=r"stop\(\) without start\(\)"):
        Timer().stop()


def test_elapsed_before_anything_says_so():
    with pytest.raises(SettingError, match="nothing was timed yet"):
        _ = Timer().elapsed


# ---------------------------------------------------------------- reports


def test_the_report_leads_with_the_median(capsys):
    timer = Timer()
    timer.measurements = [0.0105] * 3 + [0.0101, 0.0452]
    timer.print_report("model")
    words = capsys.readouterr().out.split()
    first_number = next(word for word in words if word[0].isdigit())
    assert first_number == "10.5"


def test_a_report_without_measurements_says_so(capsys):
    Timer().print_report("model")
    assert capsys.readouterr().out == "model: nothing was measured yet\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_long_measurements_show_progress_on_a_terminal(monkeypatch, capsys):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("tinytorch.core.files.PATIENCE_S", 0.0)
    monkeypatch.setattr("tinytorch.core.files.REDRAW_S", 0.0)
    Timer().measure(nothing, runs=4)
    assert "100% timing" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert capsys.readouterr().out == ""
