from example_records import record

from tinytorch.benchmarking.suite_run import ENTRY_KIND, EntryOutcome, suite_fronts
from tinytorch.measure.samples import Samples


def outcome(name, seconds, *, target="mlp", score=None, peak=None, scenario="single-stream"):
    samples = {}
    if seconds is not None and scenario == "single-stream":
        samples["latency"] = Samples("latency", (seconds,))
    if seconds is not None and scenario == "offline":
        samples["throughput"] = Samples("throughput", (1 / seconds,), "examples/s")
    if peak is not None:
        samples["peak memory"] = Samples("peak memory", (peak,), "B")
    accuracy = None if score is None else {"metric": "accuracy", "mean": score}
    made = record(
        kind=ENTRY_KIND,
        name=f"{target}/{name}/{scenario}",
        samples=samples,
        settings={"target": target, "scenario": {"name": scenario}},
        details={"accuracy": accuracy, "examples": 1},
    )
    return EntryOutcome(made)


def test_the_front_of_a_target_is_who_no_other_beats():
    found = suite_fronts(
        [
            outcome("slow", 9.0, score=0.99),
            outcome("fast", 1.0, score=0.97),
            outcome("bad", 5.0, score=0.90),
        ]
    )
    (front,) = found
    assert front.front == ("mlp/fast/single-stream", "mlp/slow/single-stream")
    assert len(front.points) == 3


def test_less_memory_is_better():
    (front,) = suite_fronts([outcome("a", 1.0, peak=100), outcome("b", 2.0, peak=200)])
    assert (front.objective, front.unit) == ("peak memory", "B")
    assert front.front == ("mlp/a/single-stream",)


def test_targets_are_not_set_against_each_other():
    found = suite_fronts([outcome("a", 1.0, peak=1), outcome("a", 2.0, peak=2, target="cnn")])
    assert [(front.target, len(front.front)) for front in found] == [("mlp", 1), ("cnn", 1)]


def test_scenarios_are_not_mixed():
    mixed = [outcome("a", 1.0, peak=1), outcome("b", 0.5, peak=1, scenario="offline")]
    (front,) = suite_fronts(mixed)
    assert list(front.points) == ["mlp/a/single-stream"]
    (alone,) = suite_fronts(mixed[1:])
    assert alone.points["mlp/b/offline"] == (0.5, 1.0)


def test_what_was_not_measured_is_on_no_front():
    assert suite_fronts([outcome("a", None, peak=1), outcome("b", 1.0)]) == ()
    assert suite_fronts([]) == ()
