"""TinyMLPerf and CompetitionProfiler, the classic way into the events."""

from types import SimpleNamespace

import numpy as np
import pytest
from parts import require_part
from scripted_models import ScriptedClock, ScriptedModel

from tinytorch.competition import classic as module
from tinytorch.competition.classic import CompetitionProfiler, TinyMLPerf
from tinytorch.competition.events import EVENTS
from tinytorch.core.dispatch import active_backend, use_backend
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, SettingError
from tinytorch.models.zoo import build_mlp, load_zoo
from tinytorch.transforms.kernel_choice import set_model_backend

SPEEDUPS = ("speedup_vs_baseline", "speedup_low", "speedup_high")


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(module, "fitting_clock", lambda: ScriptedClock)
    monkeypatch.setattr(ScriptedClock, "now", 0.0)


@pytest.fixture(scope="module")
def few():
    _, dataset = TinyMLPerf().load_benchmark("mlp_sprint")
    return dataset | {
        "inputs": Tensor(dataset["inputs"].data[:200]),
        "targets": dataset["targets"][:200],
    }


@pytest.mark.parametrize("name", EVENTS)
def test_a_benchmark_is_a_trained_model_and_data_that_it_takes(name):
    model, dataset = TinyMLPerf().load_benchmark(name)
    assert len(dataset["inputs"].data) == len(dataset["targets"]) >= 1000
    outputs = model(Tensor(dataset["inputs"].data[:50])).data
    hits = (outputs.argmax(axis=-1) == dataset["targets"][:50]).mean()
    assert hits > (0.5 if name == "transformer_decathlon" else 0.9)


def test_two_loads_share_no_weights():
    one, two = (TinyMLPerf().load_benchmark("mlp_sprint")[0] for _ in range(2))
    next(iter(one.parameters())).data[:] = 0
    assert next(iter(two.parameters())).data.any()


def test_an_unknown_event_is_named():
    with pytest.raises(SettingError, match="did you mean 'mlp_sprint'"):
        TinyMLPerf().load_benchmark("mlp_print")


def test_twice_as_fast_is_a_speedup_of_two(scripted, few):
    found = CompetitionProfiler().benchmark_model(
        ScriptedModel(1.0), few, baseline_model=ScriptedModel(2.0)
    )
    assert [found[name] for name in SPEEDUPS] == pytest.approx([2, 2, 2])
    assert found["baseline_mean_latency_ms"] == pytest.approx(2000)
    assert found["accuracy"] == found["baseline_accuracy"] > 0.9


def test_latencies_are_those_of_single_requests(scripted, few):
    found = CompetitionProfiler(timing_runs=4).benchmark_model(ScriptedModel(0.5), few)
    for name in ("mean", "min", "max", "p90"):
        assert found[f"{name}_latency_ms"] == pytest.approx(500)
    assert found["std_latency_ms"] == pytest.approx(0)
    assert found["throughput"] == pytest.approx(2)
    assert found["timed_calls"] == found["timing_runs"] == 4


def test_a_fast_model_is_called_many_times_in_a_run(scripted, few):
    found = CompetitionProfiler(timing_runs=3).benchmark_model(ScriptedModel(1.5e-4), few)
    assert found["timed_calls"] == 3 * 14


def test_throughput_counts_examples(scripted, few):
    ten = few | {"batch_size": 10}
    found = CompetitionProfiler(timing_runs=2).benchmark_model(ScriptedModel(0.5), ten)
    assert found["throughput"] == pytest.approx(20)


def test_without_a_baseline_there_is_no_speedup(scripted, few):
    found = CompetitionProfiler().benchmark_model(ScriptedModel(1.0), few)
    assert [found[name] for name in SPEEDUPS] == [None] * 3


def test_few_runs_have_no_interval(scripted, few):
    found = CompetitionProfiler(timing_runs=5).benchmark_model(
        ScriptedModel(1.0), few, baseline_model=ScriptedModel(2.0)
    )
    assert [found[name] for name in SPEEDUPS] == [pytest.approx(2), None, None]


def test_both_sides_take_turns(scripted, few):
    order = []

    class Noted(ScriptedModel):
        def forward(self, inputs):
            if len(inputs.data) == 1:
                order.append(self.seconds)
            return super().forward(inputs)

    CompetitionProfiler(warmup_runs=0, timing_runs=4).benchmark_model(
        Noted(1.0), few, baseline_model=Noted(2.0)
    )
    runs = order[-8:]
    assert [sorted(runs[start : start + 2]) for start in range(0, 8, 2)] == [[1.0, 2.0]] * 4


def test_timed_requests_differ(scripted, few):
    seen = set()

    class Noted(ScriptedModel):
        def forward(self, inputs):
            if len(inputs.data) == 1:
                seen.add(inputs.data.tobytes())
            return super().forward(inputs)

    CompetitionProfiler(timing_runs=2).benchmark_model(Noted(1.5e-4), few)
    assert len(seen) == 14


def test_both_sides_compute_as_in_the_competition(scripted, few):
    model = load_zoo("mlp").model
    own = load_zoo("mlp").model
    set_model_backend(own, "reference")
    with use_backend("reference"):
        found = CompetitionProfiler(timing_runs=1).benchmark_model(model, few, own)
        assert active_backend().name == "reference"
    assert (found["backend"], found["baseline_backend"]) == ("numpy", "reference")


def test_what_computes_without_tinytorch_has_no_backend(scripted, few):
    weights = np.zeros((784, 10), np.float32)
    found = CompetitionProfiler(timing_runs=1).benchmark_model(lambda x: x.data @ weights, few)
    assert found["backend"] is None


@pytest.mark.parametrize(
    ("doubts", "threads", "words"),
    [((), 8, []), (("busy",), 1, ["busy"]), (("busy",), 8, ["busy", "8 threads are in force"])],
)
def test_threads_on_a_busy_machine_are_a_note(scripted, few, monkeypatch, doubts, threads, words):
    observed = SimpleNamespace(doubts_since=lambda before, is_computing: doubts)
    environment = SimpleNamespace(threads_in_force=threads)
    monkeypatch.setattr(module, "observe", lambda: observed)
    monkeypatch.setattr(module, "describe_environment", lambda: environment)
    found = CompetitionProfiler(timing_runs=1).benchmark_model(ScriptedModel(1.0), few)
    assert found["threads"] == threads
    assert [note[: len(word)] for note, word in zip(found["notes"], words, strict=True)] == words


def test_an_untrained_model_is_shown_to_be_one(scripted, few):
    found = CompetitionProfiler(timing_runs=1).benchmark_model(
        ScriptedModel(1.0, build_mlp(0)), few
    )
    assert found["accuracy"] < 0.4


def test_a_clock_that_stands_still_breaks_nothing(scripted, few, monkeypatch):
    monkeypatch.setattr(module, "MOST_CALLS", 5)
    found = CompetitionProfiler(timing_runs=6).benchmark_model(
        ScriptedModel(0.0), few, baseline_model=ScriptedModel(0.0)
    )
    assert [found[name] for name in SPEEDUPS] == pytest.approx([1, 1, 1])


def test_a_model_that_raises_is_an_error(few):
    def forward(x):
        raise ValueError("no weights")

    with pytest.raises(ModelError, match="no weights"):
        CompetitionProfiler().benchmark_model(forward, few)


def test_a_real_model_is_measured(few):
    found = CompetitionProfiler(timing_runs=2).benchmark_model(load_zoo("mlp").model, few)
    assert 0 < found["min_latency_ms"] <= found["p90_latency_ms"] <= found["max_latency_ms"]
    assert found["peak_memory_mb"] > 0.4


@pytest.mark.slow
def test_a_module_of_pytorch_is_measured(few):
    torch = require_part("torch")
    found = CompetitionProfiler(timing_runs=2).benchmark_model(torch.nn.Linear(784, 10), few)
    assert found["mean_latency_ms"] > 0
    assert 0 <= found["accuracy"] <= 1


@pytest.mark.parametrize(("warmup_runs", "timing_runs"), [(-1, 1), (0, 0), (0, 1.5), (True, 1)])
def test_numbers_of_runs_are_checked(warmup_runs, timing_runs):
    with pytest.raises(SettingError, match="_runs="):
        CompetitionProfiler(warmup_runs, timing_runs)


def test_data_without_targets_has_no_accuracy(scripted, few):
    inputs = {"inputs": few["inputs"]}
    found = CompetitionProfiler(timing_runs=1).benchmark_model(ScriptedModel(1.0), inputs)
    assert found["accuracy"] is None
    assert found["std_latency_ms"] is None
    assert np.isfinite(found["mean_latency_ms"])
