import dataclasses
import gc
import tracemalloc

import numpy as np
import pytest
from classic_models import (
    BATCH,
    KINDS,
    MACS_PER_SAMPLE,
    leaving_no_trace,
    make_input,
    make_model,
)
from measure.imaginary import ceilings
from parts import require_part

from tinytorch.errors import SettingError
from tinytorch.profiling.context import ProfilerContext
from tinytorch.profiling.model_profile import profile_model
from tinytorch.profiling.timer import TRACING_NOTE

MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch):
    found = ceilings()
    monkeypatch.setattr("tinytorch.profiling.context.machine_ceilings", lambda device: found)


def words(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_is_timed_and_its_result_returned(kind, capsys):
    model, x = make_model(kind), make_input(kind)
    getattr(model, "inner", model).eval()
    with (
        leaving_no_trace(model),
        ProfilerContext("MyModel", timing_runs=4, timing_warmup=1) as profiler,
    ):
        result = profiler.profile_function(model.forward, args=(x,))
    assert profiler.timing_stats["runs"] == 4
    assert profiler.memory_stats["peak_mb"] > 0
    assert tuple(result.shape) == (BATCH, 4)
    shown = words(capsys)
    for part in ("Profile of MyModel", "time median", "memory peak", "Insights"):
        assert part in shown


def test_it_is_called_as_often_as_documented():
    calls = []
    with ProfilerContext(timing_runs=5, timing_warmup=2) as profiler:
        profiler.profile_function(lambda: calls.append(None))
    assert len(calls) == 2 + 5 + 1


def test_arguments_reach_the_function():
    with ProfilerContext(timing_runs=1) as profiler:
        result = profiler.profile_function(lambda a, *, b: a - b, args=(5,), kwargs={"b": 2})
    assert result == 3


def test_timing_is_not_slowed_down_by_the_block_s_own_meter():
    seen = []
    with ProfilerContext(timing_runs=2, timing_warmup=0) as profiler:
        profiler.profile_function(lambda: seen.append(tracemalloc.is_tracing()))
    assert seen == [False, False, True]  # two timed calls, then the one for memory
    assert TRACING_NOTE not in profiler.timing_stats["notes"]


def test_without_a_function_the_block_itself_is_timed_once(capsys):
    with ProfilerContext("Block") as profiler:
        kept = bytearray(2 * MEGABYTE)
    assert profiler.timing_stats["runs"] == 1
    assert profiler.timing_stats["p50_ms"] > 0
    assert profiler.memory_stats["allocated_mb"] == pytest.approx(len(kept) / MEGABYTE, abs=0.1)
    assert "of a single run" in words(capsys)


def test_without_memory_there_is_none(capsys):
    with ProfilerContext(enable_memory=False) as profiler:
        inside = tracemalloc.is_tracing()
    assert (inside, profiler.memory_stats) == (False, {})
    assert "memory" not in words(capsys)


def test_an_exception_propagates_after_being_reported(capsys):
    profiler = ProfilerContext("Broken")
    with pytest.raises(ValueError, match="boom"), profiler:
        raise ValueError("boom")
    assert "stopped by ValueError: boom" in words(capsys)
    assert (gc.isenabled(), tracemalloc.is_tracing()) == (True, False)
    assert profiler.timing_stats["runs"] == 1


def test_an_exception_of_the_function_propagates_too(capsys):
    with pytest.raises(ZeroDivisionError), ProfilerContext() as profiler:
        profiler.profile_function(lambda: 1 / 0)
    shown = words(capsys)
    assert "stopped by ZeroDivisionError" in shown
    assert "nothing was measured" in shown


def test_a_report_that_fails_does_not_hide_the_user_s_exception(monkeypatch):
    def fail(self):
        raise RuntimeError("report")

    monkeypatch.setattr(ProfilerContext, "generate_report", fail)
    with pytest.raises(ValueError, match="mine"), ProfilerContext():
        raise ValueError("mine")
    with pytest.raises(RuntimeError, match="report"), ProfilerContext():
        pass


# ---------------------------------------------------------------- FLOPs


@pytest.mark.parametrize("enable_flops", [True, False])
def test_flops_given_by_hand_count_whatever_is_enabled(enable_flops, capsys):
    with ProfilerContext(enable_flops=enable_flops, timing_runs=2) as profiler:
        profiler.profile_function(lambda: None)
        profiler.add_flop_count(1_234_567, {"attention": 1_000_000, "linear": 234_567})
    assert profiler.flop_count == 1_234_567
    assert profiler.flop_counter.operation_counts["total_flops"] == 1_234_567
    shown = words(capsys)
    assert "1,234,567" in shown
    assert "attention 1,000,000 81.0%" in shown


def test_several_numbers_by_hand_add_up():
    with ProfilerContext(timing_runs=1) as profiler:
        profiler.add_flop_count(5)
        profiler.add_flop_count(7)
    assert profiler.flop_count == 12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["model", "method"])
def test_flops_are_counted_when_the_function_belongs_to_a_model(kind, part, capsys):
    model, x = make_model(kind), make_input(kind)
    getattr(model, "inner", model).eval()
    function = model if part == "model" else model.forward
    with (
        leaving_no_trace(model),
        ProfilerContext(enable_flops=True, timing_runs=2) as profiler,
    ):
        profiler.profile_function(function, args=(x,))
    wanted = 2 * BATCH * MACS_PER_SAMPLE
    assert profiler.flop_count == wanted
    assert f"{wanted:,}" in words(capsys)
    assert any("-bound" in insight for insight in profiler.insights)


@pytest.mark.parametrize("layer", ["Embedding", "LayerNorm"])
def test_without_products_work_is_judged_as_in_a_profile(layer):
    torch = require_part("torch")
    tokens = torch.arange(12).reshape(3, 4)

    class FloatNorm(torch.nn.LayerNorm):
        def forward(self, tokens):
            return super().forward(tokens.float())

    model = torch.nn.Embedding(16, 8) if layer == "Embedding" else FloatNorm(4)
    with ProfilerContext(enable_flops=True, timing_runs=2) as profiler:
        profiler.profile_function(model, args=(tokens,))
    assert profiler.measured[-1].work.dtype == "float32"  # not that of the tokens
    profile = profile_model(model, tokens, runs=2, ceilings=False)
    assert profile.dtype == "float32"
    judged = dataclasses.replace(profile, ceilings=ceilings()).model_bound
    assert profiler.insights[0].startswith(f"{judged.bound}-bound")


def test_without_asking_no_flops_are_counted():
    with ProfilerContext(timing_runs=1) as profiler:
        profiler.profile_function(make_model("core"), args=(make_input("core"),))
    assert profiler.flop_count is None


def test_a_function_without_a_model_says_that_nothing_was_counted(capsys):
    with ProfilerContext(enable_flops=True, timing_runs=2) as profiler:
        profiler.profile_function(np.ones, args=(3,))
    assert profiler.flop_count is None
    assert "FLOPs not counted: ones is no model and no method of one" in words(capsys)


def test_by_hand_replaces_what_was_counted():
    with ProfilerContext(enable_flops=True, timing_runs=1) as profiler:
        profiler.profile_function(make_model("core"), args=(make_input("core"),))
        profiler.add_flop_count(10)
        profiler.profile_function(make_model("core"), args=(make_input("core"),))
    assert profiler.flop_count == 10


# ---------------------------------------------------------------- using it again


def test_contexts_may_be_nested(capsys):
    with ProfilerContext("Outer") as outer, ProfilerContext("Inner") as inner:
        kept = bytearray(MEGABYTE)
    for profiler in (outer, inner):
        size = pytest.approx(len(kept) / MEGABYTE, abs=0.1)
        assert profiler.memory_stats["allocated_mb"] == size
    shown = words(capsys)
    assert shown.index("Profile of Inner") < shown.index("Profile of Outer")


def test_one_context_may_be_entered_again_inside_and_used_again_after():
    profiler = ProfilerContext(timing_runs=1)
    with profiler:
        with profiler:
            profiler.profile_function(lambda: None)
        assert len(profiler.measured) == 1
    assert len(profiler.measured) == 1
    with profiler:
        pass
    assert profiler.measured[0].name == "the block"


def test_watchers_end_in_order_whatever_is_profiled_where():
    torch = require_part("torch")
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    with ProfilerContext("Outer", timing_runs=1) as outer, ProfilerContext("Inner") as inner:
        outer.profile_function(torch.ones, args=(3,))
        kept = torch.ones(MEGABYTE, dtype=torch.uint8)
    assert _get_current_dispatch_mode() is None
    assert not tracemalloc.is_tracing()
    assert TRACING_NOTE in outer.timing_stats["notes"]
    allocated = pytest.approx(kept.nbytes / MEGABYTE, abs=0.1)
    assert inner.memory_stats["allocated_mb"] == allocated


def test_a_device_without_ceilings_is_no_reason_to_fail(monkeypatch):
    def refuse(device):
        raise SettingError("no such device")

    monkeypatch.setattr("tinytorch.profiling.context.machine_ceilings", refuse)
    with ProfilerContext(timing_runs=2) as profiler:
        profiler.profile_function(lambda: None)
        profiler.add_flop_count(5)
    assert profiler.flop_count == 5


def test_every_function_of_a_block_is_reported(capsys):
    with ProfilerContext(timing_runs=2) as profiler:
        profiler.profile_function(np.ones, args=(3,))
        profiler.profile_function(np.zeros, args=(3,))
    shown = words(capsys)
    assert shown.index("ones: time") < shown.index("zeros: time")
    assert len(profiler.measured) == 2


def test_it_works_without_being_entered(capsys):
    profiler = ProfilerContext("Loose", timing_runs=2)
    assert (profiler.timing_stats, profiler.memory_stats, profiler.insights) == ({}, {}, ())
    profiler.profile_function(lambda: None)
    report = profiler.generate_report()
    assert profiler.timing_stats["runs"] == 2
    assert "Profile of Loose" in report
    assert "Profile of Loose" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"timing_runs": 0}, "timing_runs=0"), ({"timing_warmup": -1}, "timing_warmup=-1")],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        ProfilerContext("x", **settings)


def test_negative_flops_are_refused():
    with pytest.raises(SettingError, match="flops=-1"):
        ProfilerContext().add_flop_count(-1)
