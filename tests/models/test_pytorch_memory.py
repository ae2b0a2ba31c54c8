"""Memory of a recorded step, against the events of PyTorch's own allocator and by hand."""

from collections import Counter
from itertools import pairwise

import pytest
from parts import require_part

from tinytorch.profiling.profile import MemoryTimeline

torch = require_part("torch")
nn = torch.nn

from torch.utils.checkpoint import checkpoint

from tinytorch.models.pytorch import TorchAdapter

ADAPTER = TorchAdapter()


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def record(model, step, *inputs, optimizer=None):
    return ADAPTER.record(model, step, device="cpu", inputs=inputs, optimizer=optimizer)


def forward(model, *inputs):
    def step():
        with torch.no_grad():
            return model(*inputs)

    return step


def training(model, optimizer, *inputs):
    def step():
        ADAPTER.drop_gradients(model)
        loss = model(*inputs).square().mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss

    return step


def bytes_by_category(recording):
    totals = Counter()
    for each in recording.allocations:
        totals[each.category] += each.nbytes
    return totals


def allocator_peak(step):
    """Integrate the events of the allocator, scratch memory of operators included."""
    kind = torch._C._profiler._EventType.Allocation
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        kept = step()
    events, pending = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == kind:
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
    del kept
    level = peak = 0
    for _, nbytes in sorted(events, key=lambda event: event[0]):
        level += nbytes
        peak = max(peak, level)
    return peak


def mlp():
    layers = nn.Linear(64, 512), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(512, 256)
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(256, 10)), normal(512, 64)


def cnn():
    first = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()), normal(
        32, 3, 32, 32
    )


def encoder():
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), normal(16, 64, 64)


class Functional(nn.Module):
    """Views, expanded and shared memory, an operation with an output to write to, a constant."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256, 256))
        self.constant = torch.ones(300, 256)  # known to nobody

    def forward(self, x):
        x = (x @ self.weight).view(-1, 256).transpose(0, 1).t() + self.constant[: len(x)]
        parts = torch.cat([half.expand(2, -1, -1) for half in x.chunk(2)])
        total = torch.tensor([1.0]) * parts.sum((0, 1))
        return total + x


def functional():
    return Functional(), normal(300, 256)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256))
        self.last = nn.Linear(256, 10)

    def forward(self, x):
        again = checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)
        return self.last(checkpoint(torch.tanh, again, use_reentrant=False))


def checkpointed():
    return Checkpointed(), normal(512, 64)


MODELS = [mlp, cnn, encoder, functional, checkpointed]
OPTIMIZERS = {
    "none": None,
    "sgd": lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
    "adam": torch.optim.Adam,
    "adam, lists": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adam, fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
}


@pytest.mark.parametrize("build", MODELS)
def test_the_peak_of_a_forward_pass_is_that_of_the_allocator(build):
    model, x = build()
    step = forward(model, x)
    step()
    found = MemoryTimeline(record(model, step, x).allocations).peak_activation_bytes
    assert found == pytest.approx(allocator_peak(step), rel=0.02)


@pytest.mark.parametrize(
    ("build", "name"),
    [(build, name) for build in MODELS for name in ("none", "adam")]
    + [(mlp, name) for name in ("sgd", "adam, lists", "adam, fused")],
)
def test_the_peak_of_a_training_step_is_that_of_the_allocator(build, name):
    model, x = build()
    make = OPTIMIZERS[name]
    optimizer = make(model.parameters()) if make else None
    step = training(model, optimizer, x)
    step()  # the state of an optimizer is made once and stays
    ADAPTER.drop_gradients(model)
    found = MemoryTimeline(record(model, step, x, optimizer=optimizer).allocations)
    ADAPTER.drop_gradients(model)
    assert found.peak_activation_bytes == pytest.approx(allocator_peak(step), rel=0.02)


# ---------------------------------------------------------------- by hand


def test_the_peak_of_layers_in_a_row_is_the_largest_pair_of_neighbours():
    widths = [64, 200, 30, 400, 10]
    model, x = nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(widths)]), normal(100, 64)
    made = [100 * width * 4 for width in widths[1:]]
    timeline = MemoryTimeline(record(model, forward(model, x), x).allocations)
    assert timeline.peak_activation_bytes == max(a + b for a, b in pairwise(made))
    assert timeline.allocated_bytes == sum(made)
    assert [each.path for each in timeline.allocations if each.category == "activations"] == [
        "0",
        "1",
        "2",
        "3",
    ]


def test_a_backward_pass_finds_what_the_layers_have_saved():
    # A linear layer saves its input, a ReLU its output: what comes before a ReLU is gone.
    layers = nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 10)
    model, x = nn.Sequential(*layers), normal(50, 64)
    recording = record(model, lambda: model(x).sum().backward(), x)
    begins = min(each.start for each in recording.operations if each.phase == "backward")
    alive = [
        each.nbytes
        for each in recording.allocations
        if each.category == "activations"
        and each.born < begins
        and (each.died is None or each.died > begins)
    ]
    # the output is already gone: nobody holds it, and a sum saves nothing
    assert Counter(alive) == Counter([50 * 200 * 4, 50 * 100 * 4, 4, 4])


def test_every_byte_has_its_category():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    x = normal(4, 3, 10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    step = training(model, optimizer, x)
    for _ in ("the first step, which makes the state", "any other step"):
        ADAPTER.drop_gradients(model)
        found = bytes_by_category(record(model, step, x, optimizer=optimizer))
        weights = sum(p.nbytes for p in model.parameters())
        assert found["parameters"] == found["gradients"] == weights
        assert found["inputs"] == x.nbytes
        assert found["buffers"] == sum(b.nbytes for b in model.buffers())
        assert found["optimizer state"] == 2 * weights + 4 * len(list(model.parameters()))
        assert found["temporaries"] > 0


def test_what_an_optimizer_makes_on_the_way_is_temporary():
    model, x = nn.Linear(100, 100), normal(1, 100)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    step = training(model, optimizer, x)
    step()
    made = [
        each
        for each in record(model, step, x, optimizer=optimizer).allocations
        if each.phase == "update"
    ]
    assert {each.category for each in made} == {"temporaries"}
    assert {each.path for each in made} == {None}
    assert max(each.nbytes for each in made) == model.weight.nbytes


def test_gradients_from_before_are_gradients():
    model, x = nn.Linear(8, 8), normal(1, 8)
    step = lambda: model(x).sum().backward()  # noqa: E731
    step()
    found = bytes_by_category(record(model, step, x))
    assert found["gradients"] == sum(p.nbytes for p in model.parameters())


def test_the_mask_of_a_dropout_is_an_activation():
    model, x = nn.Sequential(nn.Dropout(0.5)), normal(100, 100).requires_grad_()
    found = bytes_by_category(record(model, lambda: model(x), x))
    assert found["activations"] == 2 * x.nbytes  # on a CPU the mask is of the same dtype
    found = bytes_by_category(record(model.eval(), lambda: model(x), x))
    assert found["activations"] == 0


class Calling(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.T.reshape(2, 2, 5).movedim(0, 1)[1:].expand(2, -1, -1),
        lambda x: x.add_(1).relu_().clamp_(max=3),
        lambda x: x.unsqueeze_(0).squeeze_(0),
        lambda x: x.detach().view(20).unfold(0, 3, 1),
        lambda x: torch.add(x, 1, out=x),
        lambda x: x.split(2)[0].chunk(2)[1],
        lambda x: torch.nn.functional.relu(x, inplace=True),
    ],
)
def test_views_and_operations_in_place_hold_nothing(function):
    model, x = Calling(function), normal(5, 4)
    found = bytes_by_category(record(model, forward(model, x), x))
    assert found == {"inputs": 80}


def test_memory_that_is_shared_counts_once():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    x = normal(2, 8)
    found = bytes_by_category(record(model, forward(model, x), x, x.view(8, 2)))
    assert (found["parameters"], found["inputs"]) == (8 * 8 * 4, 2 * 8 * 4)


def test_parameters_that_are_slices_of_one_buffer_count_as_a_whole():
    flat = torch.zeros(100)
    model = nn.Module()
    model.first, model.second = nn.Parameter(flat[:60]), nn.Parameter(flat[60:])
    found = bytes_by_category(record(model, lambda: model.first.sum() + model.second.sum()))
    assert found["parameters"] == 400
    assert sum(spec.nbytes for spec in ADAPTER.parameters(model)) == 400


def test_a_slice_of_a_data_set_is_an_input_of_its_own_size():
    everything = normal(1000, 8)
    model, x = nn.Linear(8, 2), everything[:10]
    found = bytes_by_category(record(model, forward(model, x), x))
    assert (found["inputs"], found["activations"]) == (10 * 8 * 4, 10 * 2 * 4)


def test_constants_were_there_before_and_what_a_call_makes_of_numbers_was_not():
    constant = torch.ones(1000)
    model = Calling(lambda x: x + constant + torch.tensor([1.0] * 1000))
    x = normal(1000)
    found = bytes_by_category(record(model, forward(model, x), x))
    assert found == {"inputs": 4000, "buffers": 4000, "activations": 3 * 4000}


def test_an_output_that_grows_counts_with_its_new_size():
    model, x = Calling(lambda x: torch.mul(x, 2, out=torch.empty(0))), normal(1000)
    timeline = MemoryTimeline(record(model, forward(model, x), x).allocations)
    assert timeline.peak_activation_bytes == 4000


def test_a_sparse_weight_counts_what_it_stores():
    model = nn.Linear(100, 100, bias=False)
    sparse = (torch.eye(100) * 2).to_sparse_coo().coalesce()
    model.weight = nn.Parameter(sparse, requires_grad=False)
    x = normal(2, 100)
    values, indices = 100 * 4, 2 * 100 * 8
    (spec,) = ADAPTER.parameters(model)
    assert (spec.size, spec.nbytes) == (100 * 100, values + indices)
    step = lambda: torch.sparse.mm(model.weight, x.T)  # noqa: E731
    assert bytes_by_category(record(model, step, x))["parameters"] == values + indices
