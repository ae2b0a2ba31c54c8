"""One rank alone: what is recorded, and that nothing stays behind."""

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tinytorch import profile_ranks
from tinytorch.errors import SettingError
from tinytorch.scale.accounting import PARTS
from tinytorch.scale.recorder_torch import MOST_LAYERS, Recorder, choose_layers


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def parts_of_torch():
    """What a recorder replaces."""

    def held():
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        return (
            torch.nn.Module.__call__,
            torch.autograd.backward,
            loader.__next__,
            dist.Work.wait,
            dist.destroy_process_group,
        )

    return held


def training(steps, *, mark=lambda: None):
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(steps, 8))):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        mark()


def test_steps_of_ddp_are_recorded_and_everything_is_put_back(group, parts_of_torch, tmp_path):
    before = parts_of_torch()
    with profile_ranks(steps=6, warmup=2, overhead_steps=0, folder=tmp_path) as found:
        training(12)
    assert parts_of_torch() == before
    result = found.result
    assert (result.world, result.steps) == (1, 6)
    (rank,) = result.ranks
    total = sum(rank.seconds(part) for part in PARTS)
    np.testing.assert_allclose(total, rank.step_s, rtol=0.01)
    assert min(rank.seconds("input")) > 0
    (reduced,) = result.collectives
    assert (reduced.kind, reduced.nbytes, reduced.calls) == ("allreduce", 4 * 72, 1)
    assert [each.path for each in result.layers] == ["module.0", "module.1"]
    assert result.stragglers == ()


def test_collectives_that_nobody_profiles_are_not_seen(group, tmp_path):
    with profile_ranks(steps=2, warmup=1, overhead_steps=0, folder=tmp_path) as found:
        training(8)
    recorder = found._recorder
    numbers = dict(recorder._numbers)
    dist.all_reduce(torch.ones(2))
    assert recorder._numbers == numbers


def test_a_program_marks_its_own_steps(group, tmp_path):
    with profile_ranks(steps=4, warmup=1, overhead_steps=0, folder=tmp_path) as found:
        found.step()
        for _ in range(3):
            with found.input():
                x = torch.ones(3)
            dist.all_reduce(x)
            found.step()
    assert found.result.steps == 3
    assert {each.kind for each in found.result.collectives} == {"allreduce"}


def test_what_recording_costs_is_taken_in_turns(group, parts_of_torch, tmp_path):
    before = parts_of_torch()
    with profile_ranks(steps=3, warmup=1, overhead_steps=36, folder=tmp_path) as found:
        training(44)
    assert found.result.overhead.n == 6
    assert found.result.overhead.low > 0
    assert parts_of_torch() == before


def test_an_error_of_the_program_is_in_the_result(group, parts_of_torch, tmp_path):
    before = parts_of_torch()
    seen = []

    def fail():
        with profile_ranks(steps=50, warmup=1, overhead_steps=0, folder=tmp_path) as found:
            seen.append(found)
            training(9)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (found,) = seen
    assert parts_of_torch() == before
    assert "rank-failed" in {each.code for each in found.result.notes}
    assert found.result.steps >= 7


def test_without_a_process_group_the_error_says_so(parts_of_torch):
    before = parts_of_torch()
    with pytest.raises(SettingError), profile_ranks(warmup=1) as found:
        found.step()
    assert parts_of_torch() == before


def test_a_program_that_ends_in_its_warm_up_has_no_result(group, tmp_path):
    said = []
    with profile_ranks(warmup=5, folder=tmp_path) as found:
        found.say = said.append
        training(3)
    assert found.result is None
    assert len(said) == 1


def test_a_phase_inside_of_another_is_not_counted_twice():
    recorder = Recorder()
    recorder.begin_step(0)
    inner = recorder.phase("input", lambda: None)
    recorder.phase("forward", inner)()
    inner()
    assert [name for name, _, _ in recorder.end_step().spans] == ["forward", "input"]


def test_layers_are_the_deepest_level_that_is_small_enough():
    block = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    small = torch.nn.Sequential(block, torch.nn.Linear(2, 2))
    assert list(choose_layers(small)) == ["0.0", "0.1", "1"]
    wide = torch.nn.Sequential(*(torch.nn.Sequential(block) for _ in range(MOST_LAYERS // 2 + 1)))
    assert len(choose_layers(wide)) == MOST_LAYERS // 2 + 1
    assert choose_layers(torch.nn.ReLU()) == {}
