import copy
import pickle

import pytest
from parts import require_part

torch = require_part("torch")
from torch import nn
from torch_workloads import bits_of, is_unchanged, mlp, seeded, workload

from tinytorch import Workload
from tinytorch.comparison.sequential import TimeRatio
from tinytorch.errors import SettingError
from tinytorch.transforms.pinned_transfers import PinnedTransfers, prefetching
from tinytorch.transforms.pinned_transfers import torch as pinned_transfers_torch
from tinytorch.transforms.pinned_transfers.torch import FetchingModel, PinnedBuffers

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def case():
    return workload(seeded(mlp, 64), 8, 64)


@pytest.fixture
def there(case):
    """Give a model on a device, with inputs on the processor."""
    model = copy.deepcopy(case.model).cuda()
    return Workload("there", model, case.inputs)


class Slow(nn.Module):
    """A model that keeps its device busy before it looks at its inputs."""

    def forward(self, x):
        torch.cuda._sleep(20_000_000)
        return x * 2


def test_a_model_on_a_processor_transfers_nothing(case):
    plan = PinnedTransfers().plan(case)
    assert plan.skipped[0].reason == "it runs on cpu: nothing is transferred"
    assert type(PinnedTransfers().apply(case, plan)) is nn.Sequential


def test_a_function_is_left_alone(case):
    inner = case.model
    plan = PinnedTransfers().plan(Workload("function", lambda x: inner(x), case.inputs))
    assert "only the layers of a Module" in plan.skipped[0].reason


def test_copies_of_buffers_are_empty():
    buffers = PinnedBuffers()
    for twin in (copy.deepcopy(buffers), pickle.loads(pickle.dumps(buffers))):
        assert isinstance(twin, PinnedBuffers)
        assert twin.nbytes == 0


def test_buffers_made_for_inference_can_be_filled_later(monkeypatch):
    plain = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x, pin_memory, **kw: plain(x, **kw))
    with torch.inference_mode():
        buffer = pinned_transfers_torch._pinned_like(torch.zeros(3))
    buffer.copy_(torch.ones(3))
    assert buffer.tolist() == [1, 1, 1]


@on_cuda
def test_a_model_may_be_called_for_inference_and_then_without(there):
    model = FetchingModel(there.model, "cuda:0")
    with torch.inference_mode():
        first = model(*there.inputs)
    for _ in range(3):
        assert torch.equal(model(*there.inputs), first)


def test_batches_for_a_processor_come_as_they_are():
    batches = [(torch.ones(2), {"label": 1}), (torch.zeros(2), {"label": 2})]
    found = list(prefetching(batches, "cpu"))
    assert [label["label"] for _, label in found] == [1, 2]
    assert torch.equal(found[0][0], torch.ones(2))
    assert list(prefetching([], "cpu")) == []


def test_a_device_that_there_is_not_is_refused():
    with pytest.raises(SettingError, match="device 'nowhere'; give one such as 'cuda'"):
        prefetching([], "nowhere")


@on_cuda
def test_inputs_that_are_there_already_need_nothing(there):
    case = Workload("all there", there.model, (there.inputs[0].cuda(),))
    reason = PinnedTransfers().plan(case).skipped[0].reason
    assert "its inputs are on cuda:0 already; in a loop over batches, prefetching" in reason


@on_cuda
def test_a_plan_is_made_or_has_a_measured_reason(there):
    plan = PinnedTransfers().plan(there)
    assert any("bytes of pinned memory" in note for note in plan.notes)
    assert plan.steps or "it is not shown to be faster: " in plan.skipped[0].reason


@on_cuda
def test_what_is_shown_to_be_faster_is_carried_out(there, monkeypatch):
    race = (TimeRatio(0.5, 0.4, 0.6), 20)
    monkeypatch.setattr(pinned_transfers_torch, "_race", lambda *args: race)
    before = bits_of(there.model)
    plan = PinnedTransfers().plan(there)
    assert plan.speedup.value == 2
    model = PinnedTransfers().apply(there, plan)
    assert isinstance(model, FetchingModel)
    expected = there.model(there.inputs[0].cuda())
    assert torch.equal(model(*there.inputs), expected)
    assert torch.equal(copy.deepcopy(model)(*there.inputs), expected)
    assert is_unchanged(there.model, before)


@on_cuda
def test_a_model_that_gives_something_else_is_not_planned(there, monkeypatch):
    monkeypatch.setattr(FetchingModel, "forward", lambda self, x: self.model(x.cuda()) + 1)
    assert "its outputs would change" in PinnedTransfers().plan(there).skipped[0].reason


@on_cuda
def test_an_input_may_be_overwritten_as_soon_as_the_call_returns():
    model = FetchingModel(Slow(), "cuda")
    x = torch.empty(1 << 20)
    outputs = []
    for value in range(8):
        outputs.append(model(x.fill_(value)))
    x.fill_(-1)
    assert [each.unique().tolist() for each in outputs] == [[2.0 * value] for value in range(8)]


@on_cuda
def test_pinned_inputs_of_somebody_else_may_be_overwritten_too():
    model = FetchingModel(Slow(), "cuda")
    x = torch.empty(1 << 20, pin_memory=True)
    outputs = [model(x.fill_(value)) for value in range(4)]
    assert [each.unique().tolist() for each in outputs] == [[2.0 * value] for value in range(4)]


@on_cuda
def test_buffers_are_used_again_and_not_without_end():
    buffers, device = PinnedBuffers(), torch.device("cuda", 0)
    for _ in range(10):
        buffers.fetched(torch.ones(256), 0, device)
    assert buffers.nbytes == 2 * 1024
    for size in range(1, 100):
        buffers.fetched(torch.ones(size), 0, device)
    assert buffers.nbytes <= 2 * 4 * sum(range(80, 100)) + 2048


@on_cuda
def test_every_kind_of_tensor_arrives(rng):
    buffers, device = PinnedBuffers(), torch.device("cuda", 0)
    x = torch.from_numpy(rng.normal(size=(4, 6)))
    images = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    cases = [x, x.T, x[:, ::2], x[:1].expand(4, 6), images, torch.ones(0, 3), x.to_sparse()]
    for place, each in enumerate(cases):
        found = buffers.fetched(each, place, device)
        assert found.device == device
        torch.testing.assert_close(found.to_dense().cpu(), each.to_dense())
    assert buffers.fetched(images, 9, device).is_contiguous(memory_format=torch.channels_last)


@on_cuda
def test_gradients_reach_inputs_on_the_processor():
    model = FetchingModel(nn.Linear(3, 1).cuda(), "cuda")
    x = torch.ones(2, 3, requires_grad=True)
    model(x).sum().backward()
    torch.testing.assert_close(x.grad, model.model.weight.detach().cpu().expand(2, 3))


@on_cuda
def test_numbers_and_keywords_go_along():
    class Scaled(nn.Module):
        def forward(self, x, *, lengths, by):
            return x * by + lengths["all"][0].sum()

    model = FetchingModel(Scaled(), "cuda")
    found = model(torch.ones(3), lengths={"all": [torch.ones(2)]}, by=torch.tensor(2.0))
    assert found.tolist() == [4.0, 4.0, 4.0]


@on_cuda
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_come_in_order_and_whole(pinned):
    shared = torch.empty(1 << 20, pin_memory=pinned)

    def loader():  # one buffer for all batches, as some loaders have
        for value in range(8):
            yield {"x": shared.fill_(value), "name": value}

    sums = []
    for batch in prefetching(loader(), "cuda"):
        assert batch["x"].device.type == "cuda"
        torch.cuda._sleep(5_000_000)
        sums.append((batch["name"], batch["x"].sum()))
    assert [(name, each.item()) for name, each in sums] == [(v, v * 2.0**20) for v in range(8)]


@on_cuda
def test_memory_of_a_batch_is_not_given_away_while_it_is_used():
    total = torch.zeros((), device="cuda")
    for batch in prefetching((torch.full((1 << 20,), float(v)) for v in range(16)), "cuda"):
        torch.cuda._sleep(5_000_000)
        total += batch.mean()
        del batch
    assert total.item() == sum(range(16))
