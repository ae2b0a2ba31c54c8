import json
from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

from tinytorch.comparison import evidence
from tinytorch.comparison import sides as side_module
from tinytorch.comparison.evidence import OF_ROUNDS, Evidence, gather_evidence
from tinytorch.comparison.processes import Isolated, ProcessSide
from tinytorch.comparison.resources import Resources
from tinytorch.comparison.sequential import TimedRounds
from tinytorch.comparison.sides import Known, LocalSide, WorkloadSide
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import Failure, MeasurementError, ModelError
from tinytorch.measure.interleaving import Pace, Round
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import WALL
from tinytorch.models.core import CoreAdapter
from tinytorch.models.workload import Workload

torch = require_part("torch")

X = Tensor(np.ones((2, 4), np.float32))


def function_side(function, name="baseline", **settings):
    return LocalSide(name, lambda: function, can_rebuild=False, **settings)


def model_side(seed=0, name="baseline", model=None, **settings):
    model = model or Linear(4, 3, rng=seed)
    return WorkloadSide(Workload("w", model, (X,), **settings), name=name)


def scores(*pattern):
    return lambda model: np.resize(np.array(pattern, float), 300)


def gathered(first, second, margin=0.01):
    return gather_evidence(first, second, margin=margin)


def slow_rounds(loops=(1, 1)):
    """Give six rounds of one call each that took 0.8 s and 0.9 s."""
    pace = Pace(loops, 1, 0, round_s=1.7, call_s=(0.8, 0.9))
    return TimedRounds((Round((0.8,), (0.9,)),) * 6, 0.05, pace, 10.2, ())


def completed(first, second, known=None, **settings):
    for side in (first, second):
        side.build()
    rng = np.random.default_rng(0)
    return (known or Evidence()).completed(first, second, budget_s=0.02, rng=rng, **settings)


# ---------------------------------------------------------------- before the time


def test_the_same_weights_give_the_same_outputs():
    found = gathered(model_side(), model_side(name="candidate"))
    assert found.outputs.is_identical
    assert found.notes == ()


def test_other_weights_give_other_outputs():
    found = gathered(model_side(), model_side(1, name="candidate"))
    assert found.outputs.max_error > 0
    assert 0 <= found.outputs.top1_agreement <= 1


def test_outputs_of_two_frameworks_are_compared():
    ours = Linear(4, 3, rng=0)
    theirs = torch.nn.Linear(4, 3)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(ours.weight.data.T.copy()))
        theirs.bias.copy_(torch.from_numpy(ours.bias.data))
    workload = Workload("w", theirs, (torch.ones(2, 4),))
    found = gathered(model_side(model=ours), WorkloadSide(workload, name="candidate"))
    # Three products and a bias in float32.
    assert found.outputs.max_error < 1e-5


def test_results_that_differ_from_call_to_call_are_told():
    rng = np.random.default_rng(0)
    found = gathered(function_side(lambda: 1.0), function_side(rng.standard_normal, "candidate"))
    assert found.notes == ("candidate is not deterministic",)


def counting_side(name, *, known, slow_call_s=0.0, value=1.0):
    calls = []

    def model(x):
        calls.append(1)
        return x * value

    workload = Workload("w", model, (X,))
    side = WorkloadSide(workload, name=name, known=Known(known))
    side.slow_call_s = slow_call_s
    return side, calls


ONES = (np.ones((2, 4), np.float32),)


@pytest.mark.parametrize(
    ("known", "slow_call_s", "expected"),
    [(None, 0.0, 2), (None, 3.0, 2), (ONES, 0.0, 1), (ONES, 3.0, 0)],
)
def test_slow_calls_are_not_made_again_for_outputs_that_are_known(known, slow_call_s, expected):
    first, calls = counting_side("baseline", known=known, slow_call_s=slow_call_s)
    second, _ = counting_side("candidate", known=None)
    found = gathered(first, second)
    assert len(calls) == expected
    assert found.outputs.is_identical
    assert found.notes == ()


def test_a_quick_model_must_give_again_what_it_is_known_to_give():
    first, _ = counting_side("baseline", known=ONES)
    second, _ = counting_side("candidate", known=ONES, value=2.0)
    found = gathered(first, second)
    assert found.notes == ("candidate is not deterministic",)


def test_the_seconds_of_a_call_are_those_of_the_call_alone(monkeypatch):
    moments = iter([10.0, 13.0])
    monkeypatch.setattr(side_module, "perf_counter", lambda: next(moments))
    outputs, seconds = counting_side("baseline", known=None)[0].outputs_and_seconds()
    assert np.array_equal(outputs[0], ONES[0])
    assert seconds == 3.0


def test_nan_is_no_different_result():
    nan = function_side(lambda: np.full(3, np.nan))
    assert gathered(nan, function_side(lambda: np.full(3, np.nan), "candidate")).notes == ()


@pytest.mark.parametrize("result", [None, "text", object()])
def test_functions_without_numbers_have_no_outputs(result):
    found = gathered(function_side(lambda: result), function_side(lambda: 1.0, "candidate"))
    assert found.outputs is None
    assert found.not_measured["outputs"] == evidence.NO_ARRAYS


def test_scores_are_compared_example_by_example():
    found = gathered(
        model_side(evaluate=scores(1, 1, 0), metric="top-1"),
        model_side(name="candidate", evaluate=scores(1, 0, 0), metric="top-1"),
    )
    assert found.accuracy.verdict == "worse"
    assert (found.accuracy.n, found.accuracy.metric) == (300, "top-1")


def test_a_candidate_without_a_measure_is_judged_by_the_baselines():
    found = gathered(model_side(evaluate=scores(1, 1, 0)), model_side(name="candidate"))
    assert found.accuracy.verdict == "not worse"


def test_a_measure_of_the_candidate_alone_compares_nothing():
    found = gathered(model_side(), model_side(name="candidate", evaluate=scores(1, 0)))
    assert found.accuracy is None
    assert found.not_measured["accuracy"].code == "no-evaluate"


@pytest.mark.parametrize(
    ("evaluate", "reason"),
    [
        (lambda model: 1 / 0, "candidate could not be evaluated: ZeroDivisionError"),
        (lambda model: np.ones(299), "300 scores of the baseline but 299"),
    ],
)
def test_scores_that_cannot_be_compared_have_a_reason(evaluate, reason):
    found = gathered(
        model_side(evaluate=scores(1, 1, 0)), model_side(name="candidate", evaluate=evaluate)
    )
    assert found.accuracy is None
    assert reason in str(found.not_measured["accuracy"])


def test_a_candidate_without_numbers_for_scores_is_worse():
    found = gathered(
        model_side(evaluate=scores(1, 1, 0)),
        model_side(name="candidate", evaluate=lambda model: np.full(300, np.nan)),
    )
    assert found.accuracy.verdict == "worse"
    assert json.dumps(found.accuracy.to_dict(), allow_nan=False)


def test_a_side_that_raises_is_no_evidence():
    with pytest.raises(ModelError, match="candidate raised"):
        gathered(function_side(lambda: 1.0), function_side(lambda: 1 / 0, "candidate"))


def test_sides_in_processes_are_compared_in_outputs_and_scores(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "class Workload:\n"
        "    metric = 'exact match'\n"
        "    def __init__(self, value): self.value = value\n"
        "    def model(self): return self.value\n"
        "    def evaluate(self, model): return np.resize([1.0, self.value], 100)\n"
        "    keywords, inputs, arguments = {}, (), ()\n"
        "    def run(self): return self.value\n"
        "def one(): return Workload(1.0)\n"
        "def none(): return Workload(0.0)\n",
        "utf-8",
    )
    package = tmp_path / "tinytorch"
    (package / "workloads").mkdir(parents=True)
    (package / "adapters").mkdir()
    for folder in (package, package / "workloads", package / "adapters"):
        (folder / "__init__.py").write_text("", "utf-8")
    (package / "workloads" / "targets.py").write_text(
        "import mine\ndef load_workload(target): return getattr(mine, target)()\n", "utf-8"
    )
    # An adapter of a version that cannot give arrays yet.
    (package / "adapters" / "adapter.py").write_text(
        "from contextlib import nullcontext\n"
        "class Old:\n"
        "    def without_gradients(self): return nullcontext()\n"
        "def adapter_for(model, inputs=()): return Old()\n",
        "utf-8",
    )
    pair = [
        ProcessSide(Isolated(target, folder=tmp_path), name=name)
        for target, name in (("one", "baseline"), ("none", "candidate"))
    ]
    try:
        found = gathered(*pair)
    finally:
        for side in pair:
            side.close()
    assert found.outputs.max_error == 1
    assert found.accuracy.verdict == "worse"
    assert found.accuracy.metric == "exact match"
    after = found.completed(*pair, budget_s=0.1, rng=np.random.default_rng(0))
    assert set(after.not_measured) == {"calls", "resources", "energy"}
    assert after.accuracy == found.accuracy


# ---------------------------------------------------------------- after the time


def test_functions_have_single_calls_and_no_resources():
    found = completed(function_side(lambda: 1.0), function_side(lambda: 2.0, "candidate"))
    assert [each.name for each in found.calls] == ["baseline", "candidate"]
    assert found.resources is None
    assert found.not_measured["resources"] == evidence.NOT_A_MODEL


def test_models_have_resources():
    found = completed(model_side(), model_side(name="candidate"))
    assert [each.parameter_bytes for each in found.resources] == [60, 60]
    assert "resources" not in found.not_measured


def counted_sides():
    calls = {"baseline": 0, "candidate": 0}

    def side(name):
        def count():
            calls[name] += 1

        return function_side(count, name)

    return side("baseline"), side("candidate"), calls


def test_slow_calls_that_were_timed_one_by_one_are_not_made_again():
    first, second, calls = counted_sides()
    found = completed(first, second, timed=slow_rounds())
    assert calls == {"baseline": 0, "candidate": 0}
    assert [each.values for each in found.calls] == [(0.8,) * 6, (0.9,) * 6]
    assert found.calls[0].notes[0] == OF_ROUNDS


def test_slow_calls_that_were_timed_in_blocks_are_no_single_calls():
    first, second, calls = counted_sides()
    found = completed(first, second, timed=slow_rounds(loops=(1000, 1)))
    assert (found.calls, calls) == (None, {"baseline": 0, "candidate": 0})
    assert found.not_measured["calls"].code == "too-slow"


def test_a_model_that_was_timed_itself_is_called_once_more_for_its_memory():
    calls = []

    def model(x):
        calls.append(1)
        return x

    sides = [model_side(name=name, model=model) for name in ("baseline", "candidate")]
    for side in sides:
        side.stay_as_it_is("it is slow")
    completed(*sides, timed=slow_rounds())
    assert len(calls) == 2


def test_what_a_model_is_known_to_need_is_not_measured_again():
    first, calls = counting_side("baseline", known=None)
    second, _ = counting_side("candidate", known=None)
    first.known = Known(resources=Resources(peak_bytes=123))
    first.stay_as_it_is("it is slow")
    found = completed(first, second, timed=slow_rounds())
    assert found.resources[0] is first.known.resources
    assert found.resources[1].peak_bytes > 0
    assert calls == []


def test_what_was_known_before_is_kept():
    known = Evidence(not_measured={"accuracy": Failure("a reason")}, notes=("a note",))
    found = completed(function_side(lambda: 1.0), function_side(lambda: 2.0), known)
    assert found.not_measured["accuracy"].words == "a reason"
    assert found.notes == ("a note",)


def test_a_call_that_fails_after_the_time_is_named():
    broken = function_side(lambda: 1 / 0, "candidate")
    with pytest.raises(ModelError, match="candidate raised: ZeroDivisionError"):
        completed(function_side(lambda: 1.0), broken)


# ---------------------------------------------------------------- energy


class Meter:
    """A counter that goes up by the joules of each call."""

    name = "told"

    def __init__(self):
        self.joules = 0.0

    def read(self):
        return self.joules

    def joules_between(self, before, after):
        return after - before

    def spend(self, joules):
        self.joules += joules


def test_energy_is_joules_per_call_of_each_side(monkeypatch):
    meter = Meter()
    monkeypatch.setattr(evidence, "find_energy_meters", lambda device: ((meter,), ()))
    found = completed(
        function_side(lambda: meter.spend(2.0)),
        function_side(lambda: meter.spend(5.0), "candidate"),
    )
    first, second = found.energy
    assert first.values == pytest.approx([2.0] * evidence.ENERGY_TURNS)
    assert second.values == pytest.approx([5.0] * evidence.ENERGY_TURNS)
    assert (first.unit, first.name, second.name) == ("J", "baseline", "candidate")
    assert len(first.notes) == len(set(first.notes))
    assert "energy" not in found.not_measured


def test_energy_of_slow_calls_takes_two_of_each(monkeypatch):
    meter, calls = Meter(), []

    def slow(name, joules):
        calls.append(name)
        meter.spend(joules)

    monkeypatch.setattr(evidence, "find_energy_meters", lambda device: ((meter,), ()))
    found = completed(
        function_side(lambda: slow("a", 2.0)),
        function_side(lambda: slow("b", 5.0), "candidate"),
        timed=slow_rounds(),
    )
    assert calls == ["a", "b", "b", "a"]
    assert [each.values for each in found.energy] == [(2.0, 2.0), (5.0, 5.0)]


def test_without_a_meter_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(evidence, "find_energy_meters", lambda device: ((), ("no counters",)))
    found = completed(function_side(lambda: 1.0), function_side(lambda: 2.0))
    assert found.energy is None
    assert str(found.not_measured["energy"]) == "no counters"


def test_a_meter_that_fails_is_a_reason(monkeypatch):
    def fail(*args, **settings):
        raise MeasurementError("the counters did not move")

    monkeypatch.setattr(evidence, "find_energy_meters", lambda device: ((Meter(),), ()))
    monkeypatch.setattr(evidence, "measure_energy", fail)
    found = completed(function_side(lambda: 1.0), function_side(lambda: 2.0))
    assert str(found.not_measured["energy"]) == "the counters did not move"


def test_the_turns_of_energy_alternate(monkeypatch):
    order = []

    def told(function, *, name, **settings):
        order.append(name)
        return Samples(name, (1.0,), unit="J")

    monkeypatch.setattr(evidence, "find_energy_meters", lambda device: ((Meter(),), ()))
    monkeypatch.setattr(evidence, "measure_energy", told)
    completed(function_side(lambda: 1.0, "a"), function_side(lambda: 2.0, "b"))
    assert order == ["a", "b", "b", "a"] * (evidence.ENERGY_TURNS // 2)


# ---------------------------------------------------------------- what cannot be compared


def test_scores_of_two_kinds_are_not_compared():
    first = model_side(evaluate=scores(1, 0), metric="accuracy")
    second = model_side(name="candidate", evaluate=scores(1, 0), metric="perplexity")
    found = gathered(first, second)
    assert found.accuracy is None
    reason = "the baseline is scored by accuracy, the candidate by perplexity"
    assert str(found.not_measured["accuracy"]) == reason


def test_the_baselines_measure_keeps_its_name():
    first = model_side(evaluate=scores(1, 0), metric="likelihood")
    assert gathered(first, model_side(name="candidate")).accuracy.metric == "likelihood"


def test_inputs_of_other_shapes_are_named():
    wide = Workload("w", Linear(4, 3, rng=0), (Tensor(np.ones((5, 4), np.float32)),))
    found = gathered(model_side(), WorkloadSide(wide, name="candidate"))
    assert found.notes == ("the sides get different inputs: [(2, 4)] against [(5, 4)]",)


def test_sides_on_two_devices_have_no_common_clock(monkeypatch):
    first, second = model_side(), model_side(name="candidate")
    elsewhere = replace(WALL, name="cuda events")
    monkeypatch.setattr(type(second), "clock", property(lambda side: side.own_clock))
    first.own_clock, second.own_clock = WALL, elsewhere
    found = completed(first, second)
    assert (found.calls, found.energy) == (None, None)
    assert found.not_measured["calls"] == found.not_measured["energy"] == evidence.OTHER_DEVICES


@pytest.mark.parametrize("name", ["baseline", "candidate"])
def test_an_evaluation_that_hangs_is_given_up_after_many_calls(name, monkeypatch):
    monkeypatch.setattr(side_module, "CALLS_OF_STAGE", 0.01)

    def hang(model):
        while True:
            pass

    sides = [
        WorkloadSide(
            Workload("w", Linear(4, 3, rng=0), (X,), evaluate=hang if each == name else scores(1)),
            name=each,
            timeout_s=20.0,
        )
        for each in ("baseline", "candidate")
    ]
    found = gathered(*sides)
    assert found.accuracy is None
    failure = found.not_measured["accuracy"]
    assert (failure.code, failure.subject) == (evidence.EVALUATE_FAILED, name)
    assert "did not return within 0.2" in failure.words


def test_a_candidate_that_lost_its_measure_is_told_from_sides_without_any():
    found = gathered(model_side(evaluate=scores(1, 0)), function_side(lambda: 1.0, "candidate"))
    assert found.not_measured["accuracy"] == evidence.NO_EVALUATE_ANY_MORE
    assert gathered(model_side(), model_side()).not_measured["accuracy"] == evidence.NO_EVALUATE


# ---------------------------------------------------------------- what a mask hides

PADDED = """
import numpy as np

class Padded:
    def __init__(self, padding):
        self.padding = padding

    def forward(self, x, attention_mask):
        return np.where(attention_mask[..., None], x, self.padding)

def workload(padding):
    from tinytorch.models.workload import Workload
    mask = np.array([[1, 1, 1], [1, 0, 0]])
    return Workload("padded", Padded(padding), (np.ones((2, 3, 4)), mask))

def small():
    return workload(0.0)

def large():
    return workload(9.0)
"""


@pytest.mark.parametrize("is_isolated", [False, True])
def test_positions_that_a_mask_hides_are_not_compared(tmp_path, is_isolated):
    (tmp_path / "padded.py").write_text(PADDED, "utf-8")
    made = {}
    exec(PADDED, made)  # the same workloads, in this process and in one of their own
    sides = [
        ProcessSide(Isolated(f"padded.py:{name}", folder=tmp_path), name=name)
        if is_isolated
        else WorkloadSide(made[name](), name=name)
        for name in ("small", "large")
    ]
    try:
        found = gathered(*sides)
    finally:
        for side in sides:
            if is_isolated:
                side.close()
    assert found.outputs.is_identical
    assert found.outputs.outputs[0].left_out == 2


# ---------------------------------------------------------------- device times


class TellingEvents:
    """A clock of a device that shows one second for the baseline and half of it for the other."""

    name, resolution_s, is_disturbed_by_host = "cuda events", 1e-6, False

    def time(self, function, loops):
        side = getattr(function, "__self__", None)
        return loops * {"baseline": 1.0, "candidate": 0.5}.get(getattr(side, "name", ""), 1e-6)


def sides_on(monkeypatch, *devices, unseen=False):
    monkeypatch.setattr(CoreAdapter, "event_clock", lambda self, device: TellingEvents())
    monkeypatch.setattr(evidence, "has_unseen_work", lambda function, device: unseen)
    sides = [model_side(), model_side(name="candidate")]
    for side, device in zip(sides, devices, strict=True):
        side.device = device
    return sides


def device_times(sides):
    for side in sides:
        side.build()
    rng = np.random.default_rng(0)
    return evidence._device_times(*sides, budget_s=1.0, rng=rng, timed=None)


def test_device_times_are_those_of_events(monkeypatch):
    (one, other), reason = device_times(sides_on(monkeypatch, "cuda:0", "cuda:0"))
    assert (one.median, other.median, reason) == (1.0, 0.5, None)


@pytest.mark.parametrize("devices", [("cuda:0", "cpu"), ("cpu", "cuda:0"), ("cuda:0", "cuda:1")])
def test_devices_that_differ_have_no_common_events(monkeypatch, devices):
    assert device_times(sides_on(monkeypatch, *devices)) == (None, evidence.EVENTS_OF_ONE_DEVICE)


def test_on_a_processor_device_times_are_not_missed(monkeypatch):
    assert device_times(sides_on(monkeypatch, "cpu", "cpu")) == (None, None)


def test_work_that_events_do_not_see_has_no_device_time(monkeypatch):
    found, reason = device_times(sides_on(monkeypatch, "cuda:0", "cuda:0", unseen=True))
    assert found is None
    assert reason.code == "unseen-work"
