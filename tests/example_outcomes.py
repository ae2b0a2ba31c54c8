"""Outcomes of imaginary entries of a suite, for tests."""

from example_records import record

from tinytorch.benchmarking.suite_run import ENTRY_KIND, EntryOutcome
from tinytorch.measure.samples import Samples

ACCURACY = {"metric": "accuracy", "mean": 0.976, "low": 0.971, "high": 0.98, "confidence": 0.95}
SERVER = {
    "rate": 120.0,
    "too_high": 130.0,
    "is_confirmed": True,
    "bound_s": 0.02,
    "bound_is_given": True,
    "percentile": 99.0,
    "trials": [{}, {}, {}],
}


def outcome(scenario="single-stream", samples=None, *, name="mlp/batch 1/numpy/none", **changes):
    """Give the outcome of an entry of the MLP with some samples."""
    details = {"accuracy": ACCURACY, **changes.pop("details", {})}
    fields = {"previous": None, "not_compared": "", "kept_note": ""}
    extra = {key: changes.pop(key, value) for key, value in fields.items()}
    made = record(
        kind=ENTRY_KIND,
        name=f"{name}/{scenario}",
        samples=samples or {},
        settings={"target": "mlp", "scenario": {"name": scenario}},
        details=details,
        **changes,
    )
    return EntryOutcome(made, **extra)


def single_stream(count=400, factor=1.0, **changes):
    """Give one with calls of one to two milliseconds, times a factor."""
    values = tuple(factor * (1 + position / count) * 1e-3 for position in range(count))
    samples = {
        "latency": Samples("latency", values),
        "peak memory": Samples("peak memory", (2**20,), "B"),
        "file size": Samples("file size", (2048,), "B"),
    }
    return outcome(samples=samples, **changes)


def offline(**changes):
    """Give one with some rounds of throughput."""
    values = (900.0, 1000.0, 1100.0, 1050.0, 950.0, 1000.0)
    samples = {"throughput": Samples("throughput", values, "examples/s")}
    return outcome("offline", samples, **changes)


def server(**changes):
    """Give one with a rate that met the bound twice."""
    samples = {
        "rate": Samples("rate", (120.0,), "1/s"),
        "latency": Samples("latency", tuple(1e-3 + 1e-6 * index for index in range(500))),
    }
    return outcome("server", samples, details={"server": SERVER}, **changes)
