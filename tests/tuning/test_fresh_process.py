"""Baseline and saved result, compared in a process that has done nothing else."""

import pytest

from tinytorch import load_workload
from tinytorch.core.dispatch import active_backend
from tinytorch.errors import ModelError
from tinytorch.measure.child_process import ChildError
from tinytorch.models.workload import Workload
from tinytorch.tuning import fresh_process
from tinytorch.tuning.attempt import FRESH, RELOADED, Settings
from tinytorch.tuning.catalog import find_entries
from tinytorch.tuning.fresh_process import BothSides, compare_in_fresh_process
from tinytorch.tuning.saving import write_stack
from tinytorch.tuning.trying import Trials

QUANTIZED = find_entries(["int8-dynamic"])
BUDGET = {"limit_s": 120.0, "budget_s": 0.1}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What was saved of the zoo's MLP, and its workload."""
    workload = load_workload("mlp")
    plans = [QUANTIZED[0].transforms[0].plan(workload)]
    folder = tmp_path_factory.mktemp("saved")
    return write_stack(folder, workload, name="mlp", stack=["int8-dynamic"], plans=plans), workload


def test_both_sides_are_loaded_and_compared_there(saved):
    path, workload = saved
    found = compare_in_fresh_process(path, workload, target="mlp", names=("a", "b"), **BUDGET)
    assert (found.baseline_name, found.candidate_name) == ("a", "b")
    assert found.n >= 6
    # The saved result is the smaller one, and both are the same function but for rounding.
    assert found.resources[1].file_bytes < 0.5 * found.resources[0].file_bytes
    assert 0 < found.outputs.max_relative_error < 0.1


@pytest.fixture
def both(saved, tmp_path, monkeypatch):
    """The service of the other process, in this one."""
    path, workload = saved

    class Here:
        def __init__(self, serve, **_):
            self.service = BothSides(None)

        def ask(self, do, *, timeout_s, **request):
            return getattr(self.service, do)(**request)

        def close(self):
            pass

    monkeypatch.setattr(fresh_process, "Child", Here)
    return path, workload


@pytest.mark.parametrize("target", ["mlp", ""])
def test_without_a_target_the_baseline_itself_is_sent(both, target):
    path, workload = both
    backend = active_backend().name
    given = Workload("mine", workload.model, workload.inputs)
    found = compare_in_fresh_process(path, given, target=target, **BUDGET)
    assert 0 < found.outputs.max_relative_error < 0.1
    assert active_backend().name == backend


@pytest.fixture(scope="module")
def trials():
    found = Trials(load_workload("mlp"), Settings(), target="mlp")
    found.start_s = 1.0
    return found


def test_a_confirmation_in_a_fresh_process_has_everything_of_one_here(trials):
    here, _ = trials.confirm(QUANTIZED, budget_s=0.1)
    fresh, built = trials.confirm(QUANTIZED, budget_s=0.1, is_fresh=True)
    assert (here.confirmed_on, fresh.confirmed_on) == (RELOADED, FRESH)
    assert built is not None
    one, other = here.comparison, fresh.comparison
    assert (one.baseline_name, one.candidate_name) == (other.baseline_name, other.candidate_name)
    assert set(one.not_measured) == set(other.not_measured)
    assert other.accuracy == one.accuracy
    assert other.outputs == one.outputs
    assert [x.file_bytes for x in other.resources] == [x.file_bytes for x in one.resources]


@pytest.mark.parametrize(
    "error", [ChildError("crashed", "gone"), ModelError("odd"), OSError("full")]
)
def test_where_there_is_no_fresh_process_the_reason_is_noted(trials, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("tinytorch.tuning.trying.compare_in_fresh_process", fails)
    before = len(trials.notes)
    found, built = trials.confirm(QUANTIZED, budget_s=0.1, is_fresh=True)
    assert (found.confirmed_on, found.is_acceptable) == (RELOADED, True)
    assert built is not None
    (note,) = trials.notes[before:]
    assert str(error) in note


def test_the_size_on_disk_is_at_least_that_of_what_is_saved(trials, monkeypatch):
    def written(*arguments, **settings):
        path = write_stack(*arguments, **settings)
        with path.open("ab") as file:
            file.truncate(path.stat().st_size + 10_000_000)  # floats instead of integers, say
        return path

    def loaded(path, workload):
        return QUANTIZED[0].transforms[0].apply(workload, plan)

    plan = QUANTIZED[0].transforms[0].plan(trials.workload)
    plain, _ = trials.confirm(QUANTIZED, budget_s=0.1)
    monkeypatch.setattr("tinytorch.tuning.trying.write_stack", written)
    monkeypatch.setattr("tinytorch.tuning.trying.load_optimized", loaded)
    found, _ = trials.confirm(QUANTIZED, budget_s=0.1)
    sizes = [each.comparison.resources[1].file_bytes for each in (plain, found)]
    assert sizes[1] >= 10_000_000 > sizes[0]
    assert found.measured.size.value > 1 > plain.measured.size.value
