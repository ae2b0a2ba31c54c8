import json
import math
from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

from tinytorch.benchmarking import entry_worker
from tinytorch.benchmarking.entry_worker import answer, measure_entry
from tinytorch.benchmarking.scenarios import RateTrial, ServerResult
from tinytorch.benchmarking.suite_file import (
    AgainstBaseline,
    Entry,
    Offline,
    Server,
    SingleStream,
)
from tinytorch.comparison.comparison import Comparison
from tinytorch.core.dispatch import active_backend, set_backend
from tinytorch.errors import ModelError, TinyTorchError
from tinytorch.measure.samples import Samples

FACTORIES = """
import copy
import numpy as np
from tinytorch import Workload
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor

LABELS = np.arange(40) % 10

def right(model):
    return (np.full(40, 3) == LABELS).astype(float) if model.is_constant else np.ones(40)

class Model(Linear):
    is_constant = False

def make(evaluate=right):
    model = Model(4, 2, rng=0)
    return Workload("tiny", model, (Tensor(np.ones((3, 4), np.float32)),), evaluate=evaluate)

def constant(model):
    model.is_constant = True
    return model

def same(model): return copy.deepcopy(model)
def worse(model): return constant(copy.deepcopy(model))
def not_finite(model):
    found = copy.deepcopy(model)
    found.weight.data[:] = np.nan
    return found
def stack():
    from tinytorch.core.layers import ReLU, Sequential
    model = Sequential(Linear(4, 8, rng=0), ReLU(), Linear(8, 2, rng=1))
    return model, Tensor(np.ones((3, 4), np.float32))
def nan_scores(): return make(lambda model: np.array([1.0, np.nan]))
def raising(): return make(lambda model: 1 / 0)
def wrong_scores(): return make(lambda model: np.ones((2, 2)))
def nan_output(): return (lambda x: Tensor([np.nan])), 1
def broken(): return (lambda x: 1 / 0), 1
def no_memory(): return make(lambda model: np.full(1, fill_memory()))
def fill_memory(): raise MemoryError("no room")
def leaving(): raise SystemExit(4)
def plain(): return (lambda x: x), 1
def no_model(model): return 3
not_a_function = 3
def with_torch():
    import torch
    return torch.nn.Linear(4, 2).eval(), torch.ones(3, 4)
"""


@pytest.fixture
def entry(tmp_path):
    (tmp_path / "tiny.py").write_text(FACTORIES, "utf-8")

    def make(name="make", scenario=None, **changes):
        fields = {"budget_s": 0.02, "folder": str(tmp_path)} | changes
        return Entry(f"tiny.py:{name}", scenario or SingleStream(queries=10), **fields)

    return make


@pytest.fixture
def _same_backend_after():
    yield
    set_backend("numpy")


def test_an_entry_has_time_memory_size_and_accuracy(entry):
    found = measure_entry(entry())
    assert found["samples"].keys() == {"latency", "peak memory", "file size", "accuracy"}
    assert len(found["samples"]["latency"]["values"]) == 10
    assert found["details"]["accuracy"]["mean"] == 1.0
    assert found["details"]["accuracy"]["low"] < 1.0
    assert found["details"]["examples"] == 3
    assert found["environment"]["fingerprint"]
    assert json.loads(json.dumps(found)) == found


def test_a_constant_model_scores_what_a_constant_scores(entry):
    found = measure_entry(entry(transform="tiny.py:constant"))
    assert found["details"]["accuracy"]["mean"] == 0.1


def test_the_batch_size_is_that_of_the_entry(entry):
    assert measure_entry(entry(batch_size=7))["details"]["examples"] == 7


def test_offline_counts_examples(entry):
    found = measure_entry(entry(scenario=Offline(), batch_size=8))
    assert found["samples"]["throughput"]["unit"] == "examples/s"


def searched(late):
    """Give the result of a search that tried one rate, twice."""
    latency = Samples("latency", (0.5,) * (20 - late) + (2.0,) * late)
    trial = RateTrial(
        rate=1.0,
        bound_s=1.0,
        percentile=50.0,
        planned=20,
        latency=latency,
        lateness=None,
        service_s=0.5,
    )
    return ServerResult(1.0, True, 50.0, (trial, trial), latency, True, ("a doubt",))


def test_a_rate_comes_with_its_latencies(entry, monkeypatch):
    monkeypatch.setattr(entry_worker, "measure_server", lambda *_, **__: searched(late=1))
    found = measure_entry(entry(scenario=Server()))
    assert found["samples"]["rate"]["values"] == [1.0]
    assert len(found["samples"]["latency"]["values"]) == 20
    assert found["details"]["server"]["is_confirmed"]
    assert "a doubt" in found["notes"]


def test_without_a_rate_there_is_no_number(entry):
    found = measure_entry(entry(scenario=Server(latency_bound_ms=1e-6, queries=400)))
    assert found["samples"].keys() == {"peak memory", "file size", "accuracy"}
    assert found["details"]["server"]["rate"] is None


@pytest.mark.usefixtures("_same_backend_after")
def test_the_backend_is_that_of_the_entry(entry):
    assert measure_entry(entry(backend="reference"))["details"]["backend"] == "reference"
    assert active_backend().name == "reference"


@pytest.mark.usefixtures("_same_backend_after")
def test_a_backend_is_ignored_for_pytorch_with_a_reason(entry):
    require_part("torch")
    found = measure_entry(entry("with_torch", backend="numpy"))
    assert found["details"]["backend"] is None
    assert "backend 'numpy' is ignored: pytorch computes by itself" in found["notes"]


def test_accuracy_is_left_out_on_request(entry):
    found = measure_entry(entry("raising", evaluate=False))
    assert found["details"]["accuracy"] is None
    assert any("evaluate = false" in note for note in found["notes"])


def test_scores_that_are_no_numbers_give_no_accuracy(entry):
    found = measure_entry(entry("nan_scores"))
    assert found["details"]["accuracy"] is None
    assert "1 of 2 scores are not finite: there is no accuracy" in found["notes"]


def test_an_output_that_is_not_finite_is_a_doubt(entry):
    found = measure_entry(entry("nan_output"))
    assert "the output holds numbers that are not finite" in found["notes"]


def test_what_cannot_be_counted_has_a_reason(entry):
    found = measure_entry(entry("plain", scenario=Offline()))
    assert found["samples"].keys() == {"throughput"}
    assert "peak_bytes" in found["details"]["resources"]["not_measured"]
    assert any("calls are counted" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("broken", {}, "the model raised ZeroDivisionError"),
        ("wrong_scores", {}, r"scores of shape \(2, 2\)"),
        ("plain", {"batch_size": 2}, "no input has an axis 0"),
        ("make", {"transform": "tiny.py:no_model"}, "gave a int; it must return the new model"),
        ("make", {"transform": "tiny.py:not_a_function"}, "is a int, no function"),
        ("missing", {}, "has no function 'missing'"),
    ],
)
def test_what_fails_raises_and_gives_no_number(entry, name, changes, message):
    with pytest.raises(TinyTorchError, match=message):
        measure_entry(entry(name, **changes))


def test_the_answer_to_a_request_is_that_of_the_entry(entry):
    found = answer(entry().to_dict())
    assert np.isfinite(found["samples"]["latency"]["values"]).all()


# A model that learns the statistics of what it sees in training mode, and then is no good.
LEARNING = """
import numpy as np
import torch
from tinytorch import Workload

def make(training=True):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).eval()
    held = torch.randn(200, 8)
    with torch.no_grad():
        right = model(held).argmax(1)
    def evaluate(model):
        with torch.no_grad():
            return (model.eval()(held).argmax(1) == right).double().numpy()
    return Workload("bn", model.train(training), (torch.randn(16, 8) * 5 + 20,), evaluate=evaluate)

def ready(): return make(training=False)
"""


@pytest.mark.parametrize(("name", "is_noted"), [("make", True), ("ready", False)])
def test_timing_does_not_change_the_model_that_is_scored(tmp_path, name, is_noted):
    require_part("torch")
    (tmp_path / "learning.py").write_text(LEARNING, "utf-8")
    asked = Entry(f"learning.py:{name}", SingleStream(queries=50), folder=str(tmp_path))
    found = measure_entry(replace(asked, budget_s=0.02))
    assert found["details"]["accuracy"]["mean"] == 1.0
    assert (entry_worker.IN_TRAINING in found["notes"]) is is_noted


def test_infinite_ends_are_null_on_the_way_to_the_parent(entry, monkeypatch):
    trial = replace(searched(late=1).trials[0], percentile=99.0)
    found = replace(searched(late=1), percentile=99.0, trials=(trial,))
    monkeypatch.setattr(entry_worker, "measure_server", lambda *_, **__: found)
    answer = json.loads(json.dumps(measure_entry(entry(scenario=Server())), allow_nan=False))
    assert answer["details"]["server"]["trials"][0]["latency_high_s"] is None


AGAINST = AgainstBaseline()


def test_a_transform_is_timed_against_its_baseline(entry):
    found = measure_entry(entry(scenario=AGAINST, transform="tiny.py:same"))
    comparison = Comparison.from_dict(found["details"]["comparison"])
    assert comparison.n >= 6
    assert comparison.accuracy.difference == 0
    assert comparison.outputs.is_identical
    assert found["samples"]["time ratio"]["values"] == pytest.approx(
        [math.exp(each.log_ratio) for each in comparison.rounds]
    )


def test_entries_of_the_catalog_are_transforms(entry):
    found = measure_entry(entry("stack", AGAINST, transform="fused-layers"))
    assert found["details"]["comparison"]["verdict"]
    with pytest.raises(ModelError, match="skipped"):
        measure_entry(entry(scenario=AGAINST, transform="inference-mode"))


@pytest.mark.parametrize("transform", ["tiny.py:worse", "tiny.py:not_finite"])
def test_a_candidate_that_is_worse_or_broken_is_not_timed(entry, monkeypatch, transform):
    def refuse(*_, **__):
        raise AssertionError("timed before the check")

    monkeypatch.setattr(entry_worker, "compare", refuse)
    with pytest.raises(ModelError, match="was not timed"):
        measure_entry(entry(scenario=AGAINST, transform=transform))
