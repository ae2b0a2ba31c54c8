"""Metrics for Prometheus, and a dashboard that asks for nothing else."""

import json
import re
from importlib import resources

import numpy as np
import pytest
from parts import hide_package, require_part

prometheus = require_part("prometheus_client")
parser = require_part("prometheus_client.parser")

from tinytorch.errors import MissingPartError
from tinytorch.monitoring.changes import Change
from tinytorch.monitoring.monitor import Monitor
from tinytorch.monitoring.prometheus import export_metrics, metrics_text


class Empty:
    def forward(self, x):
        return x


def scraped(registry):
    text, kind = metrics_text(registry)
    assert kind.startswith("text/plain")
    families = parser.text_string_to_metric_families(text.decode())
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def registry():
    return prometheus.CollectorRegistry()


def test_a_scrape_has_what_the_monitor_saw(registry):
    model = Empty()
    with Monitor(model, name="m", sample=1.0) as monitor:
        export_metrics(monitor, registry)
        for _ in range(3):
            with monitor.request():
                model.forward(np.ones((2, 4)))
        monitor.tick()
        monitor.tick()
        found = scraped(registry)
    assert found["tinytorch_request_seconds_count", "m"] == 3
    assert found["tinytorch_call_seconds_count", "m", "4"] == 3
    assert found["tinytorch_sampled_calls_total", "m"] == 3
    assert found["tinytorch_requests_in_flight", "m"] == 0
    assert found["tinytorch_resident_bytes", "m"] > 2**20
    assert found["tinytorch_monitor_faults_total", "m"] == 0


def test_a_change_is_one_as_long_as_it_lasts(registry):
    with Monitor(Empty(), name="m") as monitor:
        export_metrics(monitor, registry)
        monitor._detector.changes = [Change("layer", "a", 0.0, 1.0)]
        monitor.tick()
        key = ("tinytorch_change", "layer", "m", "a")
        assert scraped(registry)[key] == 1
        monitor._detector.changes = [Change("layer", "a", 0.0, 1.0, ended=2.0)]
        monitor.tick()
        assert scraped(registry)[key] == 0


def test_two_monitors_share_the_metrics_of_a_registry(registry):
    first, second = Empty(), Empty()
    with Monitor(first, name="a") as one, Monitor(second, name="b") as other:
        for each in (one, other):
            export_metrics(each, registry)
        first.forward(np.ones(1))
        second.forward(np.ones(1))
    found = scraped(registry)
    assert found["tinytorch_call_seconds_count", "a", "1"] == 1
    assert found["tinytorch_call_seconds_count", "b", "1"] == 1


def test_a_scrape_while_nothing_was_called_yet_is_an_answer(registry):
    with Monitor(Empty(), name="m") as monitor:
        export_metrics(monitor, registry)
        assert scraped(registry)["tinytorch_request_seconds_count", "m"] == 0


def test_the_dashboard_asks_for_metrics_that_exist(registry):
    model = Empty()
    with Monitor(model, name="m") as monitor:
        export_metrics(monitor, registry)
        with monitor.request():
            model.forward(np.ones(1))
        monitor._detector.changes = [Change("layer", "a", 0.0, 1.0)]
        monitor.tick()
        text = metrics_text(registry)[0].decode()
    there = set(re.findall(r"^(tinytorch_\w+)", text, re.M)) | {"tinytorch_layer_seconds_total"}
    labels = set(re.findall(r"[{,](\w+)=", text)) | {"layer", "pid", "le"}
    board = json.loads(
        resources.files("tinytorch.monitoring").joinpath("grafana.json").read_text("utf-8")
    )
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [
        each["query"]["query"] for each in board["templating"]["list"] if each["name"] == "model"
    ]
    assert len(asked) > 10
    for query in asked:
        names = set(re.findall(r"tinytorch_\w+", query))
        assert names
        assert names <= there, query
    for panel in board["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
            for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert {each.strip() for each in group.split(",")} <= labels


def test_without_prometheus_client_the_extra_is_named(monkeypatch):
    import sys

    hide_package(monkeypatch, "prometheus_client")
    monkeypatch.delitem(sys.modules, "tinytorch.monitoring.prometheus")
    with pytest.raises(MissingPartError, match=r"\[monitor\]"):
        import tinytorch.monitoring.prometheus  # noqa: F401
