import copy
from dataclasses import replace
from threading import Event, Thread

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
from torch import nn
from torch_workloads import bits_of, is_unchanged, mlp, seeded, workload

from tinytorch import Workload
from tinytorch.comparison.sequential import FEWEST_ROUNDS
from tinytorch.measure.environment import LIMITS
from tinytorch.transforms.plan import Plan
from tinytorch.transforms.set_threads import SetThreads
from tinytorch.transforms.set_threads import torch as set_threads_torch
from tinytorch.transforms.set_threads.torch import (
    ThreadedModel,
    ThreadRace,
    race_threads,
    setting_cost,
    table_of,
    thread_numbers,
)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Begin with two threads, whatever the machine has, and leave as many as there were."""
    before = torch.get_num_threads()
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tinytorch.measure.environment.usable_cores", lambda: 2)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def case():
    return workload(seeded(mlp, 16), 4, 16)


class Counting(nn.Module):
    """A model whose output is the number of threads that it was called with."""

    def forward(self, x):
        return x + torch.get_num_threads()


class Raising(nn.Module):
    def forward(self, x):
        raise ValueError("no")


def times(seconds, rounds=20):
    """Give times that spread by a permille around a number of seconds."""
    spread = np.linspace(0.999, 1.001, rounds)
    return list(seconds * np.random.default_rng(int(seconds * 1e6)).permutation(spread))


def scripted(monkeypatch, **seconds):
    """Let a race end with these times by number of threads."""
    found = {int(name[1:]): times(value) for name, value in seconds.items()}
    race = ThreadRace(2, found, {})
    monkeypatch.setattr(set_threads_torch, "race_threads", lambda *args, **kwargs: race)


def test_a_model_is_called_with_its_own_number_of_threads():
    model = ThreadedModel(Counting(), 3)
    assert model(torch.zeros(1)).item() == 3
    assert torch.get_num_threads() == 2
    assert "threads=3" in repr(model)
    assert copy.deepcopy(model)(torch.zeros(1)).item() == 3


def test_the_old_number_is_back_after_an_error():
    with pytest.raises(ValueError, match="no"):
        ThreadedModel(Raising(), 1)(torch.zeros(1))
    assert torch.get_num_threads() == 2


def test_a_thread_that_begins_meanwhile_does_not_keep_the_number():
    entered, may_go = Event(), Event()

    class Waiting(nn.Module):
        def forward(self, x):
            entered.set()
            assert may_go.wait(10)
            return x

    found = []

    def other():
        found.append(ThreadedModel(Counting(), 1)(torch.zeros(1)).item())
        found.append(torch.get_num_threads())

    first = Thread(target=ThreadedModel(Waiting(), 1), args=(torch.zeros(1),))
    first.start()
    assert entered.wait(10)
    second = Thread(target=other)
    second.start()
    second.join()
    may_go.set()
    first.join()
    assert found == [1, 2]
    third = []
    newest = Thread(target=lambda: third.append(torch.get_num_threads()))
    newest.start()
    newest.join()
    assert third == [2]


def test_the_innermost_number_counts_and_all_are_undone():
    assert ThreadedModel(ThreadedModel(Counting(), 1), 3)(torch.zeros(1)).item() == 1
    assert torch.get_num_threads() == 2


def test_a_model_with_its_own_number_is_left_alone(case):
    own = nn.Sequential(ThreadedModel(case.model, 1))
    reason = SetThreads(2).plan(Workload("own", own, case.inputs)).skipped[0].reason
    assert reason == "it is called with its own number already: 1 thread"


def test_the_fastest_that_is_shown_to_be_faster_wins():
    race = ThreadRace(2, {1: times(2e-3), 2: times(1e-3), 4: times(0.5e-3), 8: times(0.6e-3)}, {})
    assert race.fastest == 4
    assert race.ratio(4).value == pytest.approx(0.5, rel=0.01)


def test_a_difference_below_the_floor_changes_nothing():
    race = ThreadRace(2, {1: times(0.99e-3), 2: times(1e-3)}, {})
    assert race.fastest == 2


def test_the_table_has_every_number():
    race = ThreadRace(2, {1: times(2e-3), 2: times(1e-3)}, {4: "took 9.0 times as long at first"})
    one, two, four = table_of(race)
    assert one.startswith("1 thread: 2 ms a call, 2.00 times (")
    assert two == "2 threads: 1 ms a call (the present number), n=20"
    assert four == "4 threads: took 9.0 times as long at first"


def test_a_faster_number_is_planned_with_what_was_measured(monkeypatch, case):
    scripted(monkeypatch, _1=0.5e-3, _2=1e-3)
    plan = SetThreads().plan(case)
    (step,) = plan.steps
    assert step.settings == {"threads": 1}
    assert plan.speedup.value == pytest.approx(2, rel=0.01)
    assert plan.speedup.low <= plan.speedup.value <= plan.speedup.high
    assert "20 rounds" in plan.speedup.basis
    assert any(note.startswith("1 thread: 0.5 ms") for note in plan.notes)
    assert any("putting it back takes" in note for note in plan.notes)


def test_carrying_it_out_leaves_the_model_and_the_process_alone(monkeypatch, case):
    scripted(monkeypatch, _1=0.5e-3, _2=1e-3)
    before = bits_of(case.model)
    model = SetThreads().apply(case, SetThreads().plan(case))
    assert isinstance(model, ThreadedModel)
    assert model.threads == 1
    torch.testing.assert_close(model(*case.inputs), case.run())
    assert is_unchanged(case.model, before)
    assert torch.get_num_threads() == 2


def test_nothing_is_done_where_nothing_is_shown_to_be_faster(monkeypatch, case):
    scripted(monkeypatch, _1=1e-3, _2=1e-3)
    plan = SetThreads().plan(case)
    assert plan.is_empty
    assert plan.skipped[0].reason == "no other number is conclusively faster than the present 2"
    assert len(plan.notes) == 2
    assert type(SetThreads().apply(case, plan)) is nn.Sequential


def test_a_number_that_is_given_is_taken_and_measured(monkeypatch, case):
    scripted(monkeypatch, _2=1e-3, _3=2e-3)
    plan = SetThreads(3).plan(case)
    assert plan.steps[0].settings == {"threads": 3}
    assert plan.speedup.value == pytest.approx(0.5, rel=0.01)
    assert SetThreads(3).apply(case, plan).threads == 3


def test_the_present_number_is_nothing_to_do(case):
    assert SetThreads(2).plan(case).skipped[0].reason == "PyTorch uses 2 threads already"


def test_one_core_leaves_nothing_to_choose(monkeypatch, case):
    monkeypatch.setattr("tinytorch.measure.environment.usable_cores", lambda: 1)
    torch.set_num_threads(1)
    assert "may use 1 thread" in SetThreads().plan(case).skipped[0].reason


def test_a_race_is_run_for_real(case):
    race = race_threads(case, [1, 2], budget_s=0.05)
    assert race.default == 2
    rounds = {len(values) for values in race.times.values()}
    assert rounds.pop() >= FEWEST_ROUNDS
    assert not rounds
    assert all(value > 0 for values in race.times.values() for value in values)
    assert torch.get_num_threads() == 2


def test_a_model_that_computes_something_else_with_other_threads_is_left_out():
    case = Workload("counting", Counting(), (torch.zeros(3),))
    race = race_threads(case, [1], budget_s=0.01)
    assert list(race.times) == [2]
    assert "its outputs would" in race.left_out[1]
    plan = SetThreads(1).plan(case)
    assert plan.is_empty
    assert "its outputs would" in plan.skipped[0].reason


def test_a_model_that_fails_has_its_error_as_the_reason():
    case = Workload("raising", Raising(), (torch.zeros(3),))
    assert SetThreads(1).plan(case).skipped[0].reason == "ValueError: no"


def test_models_that_are_no_modules_are_left_alone(case):
    inner = case.model
    plan = SetThreads(1).plan(Workload("function", lambda x: inner(x), case.inputs))
    assert "only the layers of a Module" in plan.skipped[0].reason


def test_candidates_are_powers_of_two_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(set_threads_torch, "thread_limit", lambda present: 12)
    assert thread_numbers() == [1, 2, 4, 8, 12]


def test_a_number_that_the_user_set_is_a_limit(monkeypatch, case):
    monkeypatch.setattr("tinytorch.measure.environment.usable_cores", lambda: 8)
    assert thread_numbers() == [1, 2]  # by torch.set_num_threads
    torch.set_num_threads(8)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert thread_numbers() == [1, 2, 4]
    torch.set_num_threads(1)
    assert SetThreads().plan(case).is_empty


def test_a_plan_of_another_process_is_cut_to_the_limit_here(monkeypatch, case):
    scripted(monkeypatch, _1=0.5e-3, _2=1e-3)
    plan = SetThreads().plan(case)
    (step,) = plan.steps
    many = replace(plan, steps=(replace(step, settings={"threads": 16}),))
    assert SetThreads().apply(case, many).threads == 2


def test_what_it_sets_for_the_process_is_part_of_the_plan(monkeypatch, case):
    scripted(monkeypatch, _1=0.5e-3, _2=1e-3)
    plan = SetThreads().plan(case)
    assert plan.changes_process == "sets 1 thread for the whole process while it is called"
    assert Plan.from_dict(plan.to_dict()) == plan


def test_setting_costs_something_and_is_undone():
    assert setting_cost(1) > 0
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_a_gpu_is_left_alone(case):
    there = Workload("there", copy.deepcopy(case.model).cuda(), (case.inputs[0].cuda(),))
    assert "it runs on cuda:0" in SetThreads().plan(there).skipped[0].reason
