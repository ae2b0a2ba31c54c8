"""Records of imaginary measurements, for tests."""

from datetime import UTC, datetime, timedelta

from tinytorch.measure.samples import Samples
from tinytorch.records.record import Record

START = datetime(2026, 3, 1, tzinfo=UTC)
ENVIRONMENT = {
    "fingerprint": "c0ffee5eed15600d",
    "cpu_model": "AMD EPYC",
    "python": "3.11.4",
    "libraries": {"numpy": "2.4.6"},
    "usable_cores": 2,
    "commit": {"hash": "adbfef06a945a259b45409db22231a6c8d574fe3", "is_dirty": False},
}


def record(value=0.0025, *, name="gpt", hours=0, metric="latency", unit="s", **changes):
    """Give a record made some hours after the first, with three raw values around one."""
    samples = Samples(metric, (value, value * 1.01, value * 0.99), unit)
    fields = {
        "kind": "measurement",
        "name": name,
        "samples": {metric: samples},
        "environment": ENVIRONMENT,
        "settings": {"batch": 8, "device": "cpu"},
        "created_at": START + timedelta(hours=hours),
    }
    return Record(**(fields | changes))


def series(values, **changes):
    """Give one record per value, an hour apart."""
    return [record(value, hours=hours, **changes) for hours, value in enumerate(values)]
