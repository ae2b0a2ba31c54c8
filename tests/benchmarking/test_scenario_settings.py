import pytest

from tinytorch.benchmarking.suite_file import (
    SCENARIOS,
    Offline,
    Server,
    SingleStream,
    is_whole,
    scenario_fields,
    scenario_from,
)
from tinytorch.errors import SettingError
from tinytorch.measure.samples import values_needed


def test_there_are_four_scenarios():
    assert list(SCENARIOS) == ["single-stream", "offline", "server", "comparison"]


@pytest.mark.parametrize(
    "scenario",
    [
        SingleStream(queries=7),
        Offline(budget_s=3.0),
        Server(latency_bound_ms=20, percentile=90, queries=50),
    ],
)
def test_a_scenario_comes_back_from_json(scenario):
    assert scenario_from(scenario_fields(scenario)) == scenario


def test_a_rate_gets_enough_queries_to_be_decided():
    assert Server(percentile=99).queries_per_rate >= values_needed(99)
    assert Server(queries=200).queries_per_rate == 200


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (SingleStream, {"queries": 0}, "queries = 0; give a whole number above 0"),
        (SingleStream, {"queries": True}, "queries = True"),
        (Offline, {"budget_s": -1}, "budget_s=-1"),
        (Offline, {"budget_s": "long"}, "budget_s='long'"),
        (Server, {"latency_bound_ms": 0}, "latency_bound_ms=0"),
        (Server, {"latency_bound_ms": float("nan")}, "latency_bound_ms=nan"),
        (Server, {"percentile": 100}, "percentile=100"),
        (Server, {"queries": 2.5}, "queries = 2.5"),
    ],
)
def test_nonsense_is_refused(kind, settings, message):
    with pytest.raises(SettingError, match=message):
        kind(**settings)


def test_truth_is_no_whole_number():
    assert [is_whole(each) for each in (1, 0, -1, 1.0, True)] == [True, False, False, False, False]
