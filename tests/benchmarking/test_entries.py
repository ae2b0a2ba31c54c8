import pytest

from tinytorch.benchmarking.suite_file import (
    Entry,
    Offline,
    Server,
    SingleStream,
    Suite,
    SuiteWorkload,
    digest,
)
from tinytorch.core.dispatch import use_backend
from tinytorch.errors import SettingError


def suite(**changes):
    workload = SuiteWorkload(
        "mlp",
        batch_sizes=[1, 32],
        backends=["numpy"],
        transforms=["none", "fast:convert"],
        scenarios=["single-stream", "server"],
    )
    return Suite(**({"name": "zoo", "workloads": [workload]} | changes))


def test_entries_are_the_cross_product_in_order():
    names = [entry.name for entry in suite().entries()]
    assert len(names) == 8
    assert names[:3] == [
        "mlp/batch 1/numpy/none/single-stream",
        "mlp/batch 1/numpy/none/server",
        "mlp/batch 1/numpy/fast:convert/single-stream",
    ]


def test_what_is_left_out_stays_as_the_target_has_it():
    (entry,) = Suite("zoo", [SuiteWorkload("mlp")]).entries()
    assert entry.name == "mlp/own batch/default/none/single-stream"


def test_a_key_is_stable_and_follows_every_setting():
    entry = Entry("mlp", SingleStream(), batch_size=1, backend="numpy")
    assert entry.key == "50b724d207a02ebc"
    others = [
        Entry("cnn", SingleStream(), batch_size=1, backend="numpy"),
        Entry("mlp", Offline(), batch_size=1, backend="numpy"),
        Entry("mlp", SingleStream(queries=5), batch_size=1, backend="numpy"),
        Entry("mlp", SingleStream(), batch_size=2, backend="numpy"),
        Entry("mlp", SingleStream(), batch_size=1, backend="reference"),
        Entry("mlp", SingleStream(), batch_size=1, backend="numpy", transform="a:b"),
        Entry("mlp", SingleStream(), batch_size=1, backend="numpy", budget_s=3.0),
    ]
    assert len({entry.key, *(other.key for other in others)}) == len(others) + 1


def test_how_long_is_measured_leaves_latencies_comparable_but_not_rates():
    for scenario, same in ((SingleStream(), True), (Offline(), True), (Server(), False)):
        short, long = (Entry("mlp", scenario, budget_s=budget) for budget in (1.0, 2.0))
        assert (short.settings == long.settings) is same


def test_the_default_backend_is_named_in_the_settings():
    entry = Entry("mlp", SingleStream())
    with use_backend("reference"):
        inside = entry.settings
    assert inside != entry.settings
    assert inside["backend"] == "default (reference)"


def test_only_arrivals_depend_on_the_seed():
    keys = {
        kind: {Entry("mlp", kind(), seed=seed).key for seed in (0, 1)}
        for kind in (SingleStream, Offline, Server)
    }
    assert {kind: len(found) for kind, found in keys.items()} == {
        SingleStream: 1,
        Offline: 1,
        Server: 2,
    }


def test_the_same_names_in_other_folders_are_other_things(tmp_path):
    (tmp_path / "pyproject.toml").write_text("", "utf-8")
    entries = [
        Entry("x.py:make", SingleStream(), transform="y.py:fast", folder=str(tmp_path / name))
        for name in ("a", "b")
    ]
    assert [each.settings["target_file"] for each in entries] == ["a/x.py", "b/x.py"]
    assert [each.settings["transform_file"] for each in entries] == ["a/y.py", "b/y.py"]
    assert entries[0].name == entries[1].name
    assert entries[0].key != entries[1].key


def test_an_entry_comes_back_from_json():
    entry = suite(scenarios=[Server(latency_bound_ms=20)]).entries(seed=3)[1]
    assert Entry.from_dict(entry.to_dict()) == entry
    assert entry.scenario.latency_bound_ms == 20


def test_a_scenario_may_have_a_budget_of_its_own():
    made = suite(budget_s=1.0, scenarios=[Server(budget_s=20)])
    assert {entry.budget for entry in made.entries()} == {1.0, 20}
    assert {entry.budget for entry in made.with_budget(0.5).entries()} == {0.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": " "}, "name = ' '; give the suite a name"),
        ({"workloads": []}, "has no workload"),
        ({"workloads": ["mlp"]}, "workloads has a str, no SuiteWorkload"),
        ({"budget_s": 0}, "budget_s=0"),
        ({"timeout_s": True}, "timeout_s=True"),
        ({"workloads": [SuiteWorkload("mlp")] * 2}, "single-stream' is there twice"),
    ],
)
def test_a_suite_checks_itself(changes, message):
    with pytest.raises(SettingError, match=message):
        suite(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 3}, "target = 3; give a target as text"),
        ({"batch_sizes": 3}, "batch_sizes = 3; give a list"),
        ({"batch_sizes": [0]}, "batch_sizes has 0; give whole numbers above 0"),
        ({"batch_sizes": [True]}, "batch_sizes has True"),
        ({"backends": ["numpi"]}, "backends has 'numpi'; did you mean 'numpy'"),
        ({"backends": "numpy"}, "backends = 'numpy'; give a list"),
        ({"scenarios": ["sever"]}, "scenarios has 'sever'; did you mean 'server'"),
        ({"scenarios": [["x"]]}, "scenarios has"),
        ({"scenarios": []}, "scenarios is empty"),
        ({"transforms": [""]}, "transforms has ''"),
        ({"evaluate": "no"}, "evaluate = 'no'; give true or false"),
    ],
)
def test_a_workload_checks_itself(changes, message):
    with pytest.raises(SettingError, match=message):
        SuiteWorkload(**({"target": "mlp"} | changes))


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
