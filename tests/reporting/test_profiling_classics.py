import re

import pytest

from tinytorch.measure.samples import Samples
from tinytorch.profiling.context import CallProfile, Measured, ProfilerContext
from tinytorch.profiling.flops import FLOPCounter
from tinytorch.profiling.profiler import OperationTotal
from tinytorch.reporting.profiling_classics import (
    MOST_LAYERS,
    as_text,
    render_call,
    render_context,
    render_flops,
    render_memory,
    render_nothing,
    render_quick_profile,
    render_timing,
    render_top_operations,
    show,
)

# Median 10.5, mean 12.3, minimum 10.1 and maximum 45.2, in milliseconds.
SKEWED = Samples(
    "",
    tuple(ms / 1e3 for ms in (10.1, *(10.4,) * 8, 10.5, 10.5, *(10.8125,) * 8, 45.2)),
    notes=("other guests of the host took 9% of the processor time meanwhile (steal)",),
)
MEMORY = {
    "baseline_mb": 1.0,
    "final_mb": 3.0,
    "peak_mb": 9.0,
    "allocated_mb": 2.0,
    "tensor_peak_mb": None,
    "process_before_mb": 100.0,
    "process_after_mb": 104.0,
    "process_peak_mb": 120.0,
    "device_peak_mb": None,
    "device_allocated_mb": None,
}
FACTS = {
    "layer_type": "blocks[0]",
    "parameters": 1_234_567,
    "parameter_memory_mb": 4.7,
    "flops": 2_000_000,
    "batch_size": 32,
    "latency_ms": 10.5,
    "latency_ci_low_ms": 10.4,
    "latency_ci_high_ms": 10.6,
    "gflops_per_second": 6.1,
    "achieved_gflops_per_second": 7.2,
    "computational_efficiency": 0.05,
    "peak_memory_mb": 12.0,
    "activation_memory_mb": 3.0,
    "bottleneck": "memory",
    "bound_note": "memory-bound at 5% efficiency",
    "notes": ("a note",),
}


def lines_of(renderable):
    return [line.rstrip() for line in as_text(renderable).splitlines()]


def words_of(renderable):
    return " ".join(as_text(renderable).split())


def row(renderable, name):
    """Give the words of the row that begins with a name."""
    (found,) = [line.split() for line in lines_of(renderable) if line.startswith(f"{name} ")]
    return found


# ---------------------------------------------------------------- time


def test_the_samples_of_the_story_are_right():
    assert SKEWED.median == pytest.approx(0.0105)
    assert SKEWED.mean == pytest.approx(0.0123)


def test_the_first_number_of_a_timing_report_is_the_median():
    numbers = re.findall(r"\d+\.?\d*", as_text(render_timing(SKEWED, "model")))
    assert numbers[0] == "10.5"


def test_a_timing_report_shows_what_the_median_hides():
    report = render_timing(SKEWED, "model")
    assert row(report, "mean")[:3] == ["mean", "12.3", "ms"]
    assert row(report, "range") == ["range", "10.1", "ms", "to", "45.2", "ms"]
    assert row(report, "runs")[:2] == ["runs", "20"]
    assert "with 9" in words_of(report)  # the interval's real coverage, 9x%
    assert "note: other guests of the host took 9%" in words_of(report)


def test_stability_is_said_once():
    unstable = SKEWED.with_notes(SKEWED.stability.note)
    assert words_of(render_timing(unstable, "model")).count(SKEWED.stability.note) == 1


def test_a_single_run_has_no_statistics():
    report = words_of(render_timing(Samples("", (0.25,)), "block"))
    assert report == "block: time time 250 ms of a single run"


def test_nothing_is_said_to_be_nothing():
    assert as_text(render_nothing("model")) == "model: nothing was measured yet\n"


@pytest.mark.parametrize(("raised", "ending"), [(None, ")"), ("KeyError", "), raised KeyError")])
def test_a_call_is_one_line(raised, ending):
    call = CallProfile("Model.forward", 0.0105, 0.02, raised)
    shown = as_text(render_call(call))
    assert shown == f"Model.forward: 10.5 ms (20.0 ms of processor time{ending}\n"


# ---------------------------------------------------------------- memory


def test_memory_leads_with_the_peak_beyond_what_was_there():
    report = render_memory(MEMORY, "model")
    assert row(report, "peak")[:3] == ["peak", "8.00", "MB"]
    assert row(report, "kept")[:3] == ["kept", "2.00", "MB"]
    assert row(report, "process")[:3] == ["process", "104.00", "MB"]


def test_meters_that_saw_nothing_have_no_row():
    shown = as_text(render_memory(MEMORY, "model"))
    assert "tensors" not in shown
    assert "device" not in shown


def test_meters_that_saw_something_have_one():
    seen = MEMORY | {"tensor_peak_mb": 6.0, "device_peak_mb": 7.0, "device_allocated_mb": 5.0}
    report = render_memory(seen, "model")
    assert row(report, "tensors")[1] == "6.00"
    assert row(report, "device") == [
        "device",
        "7.00",
        "MB",
        "held",
        "at",
        "once;",
        *["5.00", "MB", "kept"],
    ]


def test_small_sizes_are_bytes_not_zero():
    report = render_memory(MEMORY | {"allocated_mb": 100 / 2**20}, "model")
    assert row(report, "kept")[:3] == ["kept", "100", "bytes"]


# ---------------------------------------------------------------- FLOPs


def test_flops_have_a_total_a_breakdown_and_a_convention():
    counter = FLOPCounter(convention="flops")
    counter.count_linear(100, 50, 32)
    report = render_flops(counter, "layer")
    assert row(report, "total")[:2] == ["total", "321,600"]
    assert row(report, "linear") == ["linear", "321,600", "100.0%"]
    assert "note: a multiply-accumulate counts twice" in words_of(report)


def test_a_long_breakdown_is_cut_and_the_rest_summed():
    counter = FLOPCounter()
    counter.add_total(MOST_LAYERS + 5, {f"layer{n}": 1 for n in range(MOST_LAYERS + 5)})
    assert row(render_flops(counter, "model"), "5") == ["5", "more", "5", "29.4%"]


def test_what_was_not_counted_is_named():
    counter = FLOPCounter()
    counter.not_counted = {"aten.sort": 3}
    assert "nothing is assumed about: aten.sort (3x)" in words_of(render_flops(counter, "model"))


# ---------------------------------------------------------------- models and blocks


def test_a_quick_profile_has_the_important_numbers():
    report = render_quick_profile(FACTS)
    assert lines_of(report)[1] == "blocks[0]"  # not taken for markup
    assert row(report, "parameters")[1] == "1,234,567"
    assert row(report, "FLOPs")[1:4] == ["2,000,000", "per", "sample,"]
    assert row(report, "latency")[1:3] == ["10.5", "ms"]
    assert row(report, "bottleneck")[1:3] == ["memory", "memory-bound"]
    assert "note: a note" in words_of(report)


def test_the_rate_of_a_quick_profile_is_the_one_that_its_share_of_the_peak_belongs_to():
    normalisation = {"flops": 0, "gflops_per_second": 0.0, "computational_efficiency": 0.069}
    report = render_quick_profile(FACTS | normalisation)
    assert row(report, "speed")[1:3] == ["7.20", "GFLOP/s"]
    assert "6.9% of this machine's peak" in words_of(report)


def test_a_quick_profile_without_a_bound_or_a_batch():
    unknown = {"bottleneck": None, "computational_efficiency": None, "bound_note": "not measured"}
    report = render_quick_profile(FACTS | unknown | {"batch_size": None})
    assert row(report, "bottleneck") == ["bottleneck", "-", "not", "measured"]
    assert row(report, "FLOPs")[2:4] == ["per", "call,"]


OPERATIONS = (
    OperationTotal("Matrix multiplication", ("matmul",), 20, 0.045, 0.45),
    OperationTotal("Softmax", ("softmax",), 1, 0.035, 0.35),
    OperationTotal("Addition", ("add",), 1000, 0.02, 0.2),
)


def test_the_slowest_operations_are_one_line_each():
    assert lines_of(render_top_operations(OPERATIONS, 0.125, 2)) == [
        "45% - Matrix multiplication (45.0 ms, 20 times)",
        "35% - Softmax (35.0 ms, once)",
        "20% - 1 other operations",
        "100% - 100 ms in operations",
        "The block took 125 ms, watching included.",
    ]


def test_no_operations_are_said_to_be_none():
    assert "no operation of TinyTorch or PyTorch ran" in words_of(render_top_operations((), 1.0, 5))


def test_a_context_shows_everything_that_was_measured():
    context = ProfilerContext("MyModel")
    context.measured.append(Measured("Model.forward", SKEWED, MEMORY, notes=("a doubt",)))
    shown = words_of(render_context(context))
    for part in ("Profile of MyModel", "Model.forward: time", "10.5 ms", "8.00 MB", "a doubt"):
        assert part in shown
    for insight in context.insights:
        assert f"- {insight}" in shown


def test_a_note_that_is_an_insight_is_said_once():
    context = ProfilerContext("MyModel")
    context.measured.append(Measured("f", SKEWED, notes=(SKEWED.stability.note,)))
    assert words_of(render_context(context)).count(f"- {SKEWED.stability.note}") == 1
    assert f"note: {SKEWED.stability.note}" not in words_of(render_context(context))


def test_an_exception_stands_on_top():
    context = ProfilerContext("MyModel")
    context.raised = ValueError("boom")
    shown = lines_of(render_context(context))
    assert shown[1:4] == [
        "Profile of MyModel",
        "stopped by ValueError: boom",
        "  nothing was measured",
    ]


# ---------------------------------------------------------------- printing


def test_lines_are_not_wrapped_and_brackets_survive(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    call = CallProfile("blocks[0] :key: " + "x" * 50, 0.1, 0.1)
    show(render_call(call))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("blocks[0] :key: xxx")


def test_long_sentences_hang_behind_their_mark(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    show(render_timing(SKEWED, "model"))
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("note:"))
    assert lines[first + 1].startswith("      ")


def test_text_has_no_colours():
    assert "\x1b" not in as_text(render_timing(SKEWED, "model"))


class Context:
    """What a context of a profiler has after a block in which nothing was measured by itself."""

    def __init__(self, **found):
        self.name, self.raised, self.measured, self.insights = "block", None, (), ()
        self.flop_count, self.flop_counter = None, FLOPCounter()
        vars(self).update(found)


def test_a_context_without_measurements_says_so():
    assert any("nothing was measured" in line for line in lines_of(render_context(Context())))


def test_flops_without_a_time_have_no_speed():
    with_flops = words_of(render_context(Context(flop_count=1234)))
    assert "1,234" in with_flops
    assert "speed" not in with_flops


def test_other_operations_stand_beside_the_total_and_nothing_is_said_to_be_nothing():
    counter = FLOPCounter()
    assert "nothing was counted" in words_of(render_flops(counter, "x"))
    counter.operation_counts["total_flops"] = 100
    counter.other_flops = 4321
    found = words_of(render_flops(counter, "x"))
    assert "4,321" in found
    assert "multiply " not in found
