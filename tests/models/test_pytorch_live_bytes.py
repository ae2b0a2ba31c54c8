"""The peak that is counted lightly, against that of the recorder."""

import pytest
from parts import require_part

from tinytorch.profiling.profile import MemoryTimeline

torch = require_part("torch")
nn = torch.nn

from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_recorder import peak_of_live_bytes

ADAPTER = TorchAdapter()
TABLE = torch.arange(4096.0)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Attending(nn.Module):
    """An operator that is made of others, in a layer with a cache that grows."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, x):
        kept = x
        for _ in range(3):
            y = nn.functional.scaled_dot_product_attention(x, kept, kept)
            kept = torch.cat([kept, self.mix(y)], dim=-2)
        return kept


class Reading(nn.Module):
    """Uses, at last, a constant that was there before, and what it makes of numbers."""

    def forward(self, x):
        large = (x * 2).repeat(50, 1).sum(0)
        return large + TABLE[: x.shape[1]] + torch.tensor([1.0] * x.shape[1])


class Growing(nn.Module):
    """Gives a buffer another size after it was made."""

    def forward(self, x):
        made = torch.empty(0)
        torch.mul(x, 2, out=made)
        return made.resize_(4 * x.numel()).fill_(1.0)


class Shared(nn.Module):
    """Two names for one buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def packed():
    return nn.Sequential(nn.Linear(8, 16), torch.ao.nn.quantized.dynamic.Linear(16, 4))


CASES = {
    "layers": (lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)), normal(5, 8)),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8).eval(), nn.MaxPool2d(2)),
        normal(2, 3, 12, 12),
    ),
    "attention": (Attending, normal(1, 2, 6, 16)),
    "recurrent": (lambda: nn.LSTM(8, 16), normal(7, 2, 8)),
    "constants": (Reading, normal(2, 300)),
    "growing": (Growing, normal(10)),
    "shared": (Shared, normal(3, 8)),
    "a slice": (lambda: nn.Linear(8, 8), normal(1000, 8)[:3]),
    "packed": (packed, normal(3, 8)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated:UserWarning")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_that_of_the_recorder(name, mode):
    build, x = CASES[name]
    model = build()

    def step():
        with mode():
            return model(x)

    step()
    recording = ADAPTER.record(model, step, device="cpu", inputs=(x,))
    found = peak_of_live_bytes(step, modules=ADAPTER.modules(model), inputs=tensors_in((x,)))
    assert found == MemoryTimeline(recording.allocations).peak_bytes


def test_the_peak_of_a_text_is_that_of_the_recorder():
    require_part("transformers")
    from tiny_transformers import decoder, prompts

    from tinytorch.transforms.static_generation import generation_call

    model, (ids, mask) = generation_call(decoder("llama"), max_new_tokens=5), prompts()

    def step():
        with torch.no_grad():
            return model(ids, mask)

    step()
    recording = ADAPTER.record(model, step, device="cpu", inputs=(ids, mask))
    found = peak_of_live_bytes(step, modules=ADAPTER.modules(model), inputs=(ids, mask))
    assert found == MemoryTimeline(recording.allocations).peak_bytes


def test_where_nothing_ran_there_is_no_peak():
    assert peak_of_live_bytes(lambda: 1, modules={"": nn.Linear(2, 2)}, inputs=()) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated:UserWarning")
def test_what_cannot_be_unpacked_counts_nothing(monkeypatch):
    model, x = packed(), normal(3, 8)
    modules = ADAPTER.modules(model)
    with torch.no_grad():
        whole = peak_of_live_bytes(lambda: model(x), modules=modules, inputs=(x,))

        def fail(module):
            raise RuntimeError("no unpacking")

        monkeypatch.setattr("tinytorch.models.pytorch_recorder.packed_weights", fail)
        rest = peak_of_live_bytes(lambda: model(x), modules=modules, inputs=(x,))
    # The values, a scale and a zero point, and the bias.
    assert whole - rest == 16 * 4 + 8 + 4 * 4
