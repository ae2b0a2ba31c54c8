"""The Ray executor on real clusters: nodes are processes of this machine."""

import json
import os
import tempfile
import time
from contextlib import contextmanager

import pytest
from executed_trials import write_services
from parts import hide_package, require_part
from project_files import ROOT

from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.executor import TrialCall, usable_core_numbers
from tinytorch.scale import ray as on_ray

require_part("ray")

CORES = usable_core_numbers()
WAITED_S = 180


def call(name, key="a", **arguments):
    return TrialCall(key, f"services:{name}", arguments, timeout_s=60).from_here()


@pytest.fixture(scope="module", autouse=True)
def _own_claims():
    """Let slots of these tests claim cores among themselves, not from others on this machine."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", tempfile.gettempdir())
        patch.setenv("TMPDIR", folder)
        yield


@pytest.fixture(scope="module")
def cluster(_own_claims):
    """Give a cluster of two nodes with one slot each, beside a head without slots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import sweeps

        with sweeps.cluster(2) as (made, _):
            yield made


@pytest.fixture
def services(tmp_path, monkeypatch):
    write_services(tmp_path)
    (tmp_path / "pyproject.toml").write_text("", "utf-8")
    monkeypatch.chdir(tmp_path)


@contextmanager
def executor(cluster, **settings):
    with on_ray.RayExecutor(cluster.address, cores=1, **settings) as found:
        yield found


def wait_for(executor, condition):
    """Wait for something that happens for sure, however slow the machine is."""
    end, found = time.monotonic() + WAITED_S, []
    while not condition(found):
        assert time.monotonic() < end, (executor.slots, executor.running)
        found += executor.wait(0.2)
    return found


def test_without_ray_the_extra_is_named(monkeypatch):
    hide_package(monkeypatch, "ray")
    with pytest.raises(MissingPartError, match=r"tinytorch-perf\[ray\]"):
        on_ray.RayExecutor()


def test_cores_are_claimed_once_until_they_are_released(tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray.tempfile, "gettempdir", lambda: str(tmp_path))
    first, mine = on_ray.claim_group([(0,), (1,)])
    second, other = on_ray.claim_group([(0,), (1,)])
    assert (mine, other) == ((0,), (1,))
    assert on_ray.claim_group([(0,), (1,)]) == (None, None)
    assert on_ray.claim_group([(0, 1)]) == (None, None)
    for lock in (*first, *second):
        lock.close()
    both, mine = on_ray.claim_group([(0, 1)])
    assert mine == (0, 1)
    for lock in both:
        lock.close()


@pytest.mark.slow
@pytest.mark.usefixtures("services")
def test_each_slot_is_pinned_to_cores_of_its_own(cluster):
    with executor(cluster) as found:
        wait_for(found, lambda _: len(found.slots) == 2)
        for key in "abcdef":
            found.submit(call("span", key, seconds=0.2))
        results = wait_for(found, lambda got: len(got) == 6)
        slots = {each.name: each for each in found.slots}
    assert sorted(each.key for each in results) == list("abcdef")
    for each in results:
        assert tuple(each.answer["cores"]) == slots[each.slot].cores
        assert each.machine == slots[each.slot].machine != ""
    used = [each for each in slots.values() if not each.obstacle]
    assert len({each.cores for each in used}) == len(used) == min(2, len(CORES))


@pytest.mark.slow
@pytest.mark.usefixtures("services")
def test_what_ray_says_about_threads_is_not_passed_on(cluster, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TINYTORCH_BACKEND", "reference")
    with executor(cluster) as found:
        found.submit(TrialCall("a", "os:getenv", {"key": "OMP_NUM_THREADS"}))
        found.submit(TrialCall("b", "os:getenv", {"key": "TINYTORCH_BACKEND"}))
        results = wait_for(found, lambda got: len(got) == 2)
    assert {each.key: each.answer for each in results} == {"a": None, "b": "reference"}


@pytest.mark.slow
@pytest.mark.usefixtures("services")
def test_a_noisy_slot_is_not_used_beside_another_and_the_reason_is_said(cluster, tmp_path):
    noisy = 'def noisy():\n    return arrival() | {"alarms": 3, "checks": 20, "floor": 0.2}\n'
    with (tmp_path / "services.py").open("a") as file:
        file.write(noisy)
    with executor(cluster, arrival=TrialCall("arrival", "services:noisy"), may_share=True) as found:
        wait_for(found, lambda _: len(found.slots) == 2)
        first, second = found.slots
        found.submit(call("where"))
        (result,) = wait_for(found, bool)
    refused = [each for each in (first, second) if each.obstacle]
    assert len(refused) == 1
    assert "3 of 20" in refused[0].obstacle
    assert result.slot not in {each.name for each in refused}


@pytest.mark.slow
@pytest.mark.usefixtures("services")
def test_a_trial_whose_slot_always_goes_away_is_a_failure(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(on_ray, "MOST_LOST", 2)
    fatal = "def fatal(worker):\n    os.kill(os.getppid(), 9)\n    time.sleep(60)\n"
    with (tmp_path / "services.py").open("a") as file:
        file.write(fatal)
    with executor(cluster, may_share=True) as found:
        found.submit(call("fatal", worker=1))
        found.submit(call("where", "b"))
        results = wait_for(found, lambda got: len(got) == 2)
        assert found.lost_slots == 2
    by_key = {each.key: each for each in results}
    assert by_key["a"].failure.code == on_ray.LOST
    assert by_key["b"].failure is None


@pytest.mark.slow
@pytest.mark.usefixtures("services")
def test_the_command_sweeps_on_a_cluster(cluster, tmp_path, monkeypatch, capsys):
    from example_suites import write_suite

    from tinytorch.cli.console import ExitCode
    from tinytorch.cli.main import main

    file = write_suite(tmp_path, "fine [1, 2]", "broken [1]")
    where = ["--on", "ray", "--address", cluster.address, "--cores", "1", "--checks", "0"]
    store = str(tmp_path / "records.sqlite")
    command = ["sweep", str(file), *where, "--store", store, "--json"]
    assert main(command) == ExitCode.FAILED
    payload = json.loads(capsys.readouterr().out)
    assert payload["is_complete"]
    assert payload["failed"] == len(payload["machines"])
    assert all(len(found) == 3 for found in payload["machines"].values())
    assert {each["machine"] for each in payload["slots"] if not each["obstacle"]} == set(
        payload["machines"]
    )


def test_an_address_without_a_cluster_is_refused():
    with pytest.raises(SettingError, match="ray start"):
        on_ray.RayExecutor("127.0.0.1:1")


@pytest.mark.slow
def test_killed_nodes_and_drivers_lose_and_double_nothing(monkeypatch):
    """As benchmarks/sweeps.py, with fewer kills."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import sweeps

    found = sweeps.killed(60, 4, seed=2, nodes=2)  # this seed has both kinds
    assert (found["missing"], found["doubled"], found["unknown"]) == (0, 0, 0)
    assert sum(found["kills"].values()) == 4
    assert all(found["kills"].values())
    assert os.environ.get("RAY_ADDRESS") is None
