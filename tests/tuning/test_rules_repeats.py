"""Layers that are called again and again on the same input, of models that really run."""

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload
from tinytorch.profiling.model_profile import profile_workload
from tinytorch.tuning import rules_program
from tinytorch.tuning.facts import gather_facts, share_of
from tinytorch.tuning.rules_program import repeated_calls

HEADS = 4


@pytest.fixture(autouse=True)
def _shares_of_any_size(monkeypatch):
    """The share that these layers take of a call depends on what else the machine does."""
    monkeypatch.setattr(rules_program, "LITTLE", 1e-9)


def found(model, *inputs):
    profile = profile_workload(Workload("m", model, inputs), runs=2, ceilings=False)
    facts = gather_facts(profile)
    return list(repeated_calls(profile, facts)), facts


def by_hand(*, same, changed=False):
    """Attention that projects what comes in once for each head: the same, or another each time."""
    torch = require_part("torch")
    nn = torch.nn

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x):
            x, heads = x + 1, []
            for head in range(HEADS):
                if changed:
                    x.add_(1)
                given = x if same else x + head
                part = slice(16 * head, 16 * head + 16)
                q, k, v = (f(given)[..., part] for f in (self.query, self.key, self.value))
                heads.append((q @ k.transpose(-2, -1)).softmax(-1) @ v)
            return torch.cat(heads, -1)

    return Attention().eval(), torch.ones(2, 32, 64)


def test_projections_that_are_computed_for_each_head_are_named():
    (advice,), facts = found(*by_hand(same=True))
    projections = [x for x in facts.products if x.weight is not None]
    assert {x.record.path for x in projections} == {"query", "key", "value"}
    assert len(projections) == 3 * HEADS
    assert f"called {HEADS} times" in advice.evidence[0]
    assert 0 < advice.share < share_of(projections)
    assert advice.predicted.value <= 1 / (1 - advice.share) * (1 + 1e-9)
    assert advice.entry == ""


@pytest.mark.parametrize("changed", [False, True])
def test_the_same_layer_on_other_inputs_is_no_repetition(changed):
    """Also where another input is the same tensor, after it was written to."""
    assert found(*by_hand(same=changed, changed=changed))[0] == []


class Twice(Module):
    """Calls one layer twice, on one input or on two."""

    def __init__(self, *, same):
        super().__init__()
        self.layer, self.same = Linear(256, 256, rng=0), same

    def forward(self, x):
        other = x if self.same else x * 2.0
        return self.layer(x) + self.layer(other)


@pytest.mark.parametrize("same", [True, False])
def test_layers_of_tinytorch_are_seen_as_well(same):
    advice, _ = found(Twice(same=same), Tensor(np.ones((64, 256), np.float32)))
    assert bool(advice) is same


def test_what_lies_in_the_memory_of_something_else_is_another_input():
    """Each input is freed before the next one is made, which takes its place."""
    torch = require_part("torch")

    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(128, 128)

        def forward(self, x):
            total = 0.0
            for number in range(6):
                total = total + self.layer(x * number).sum()
            return total

    assert found(Loop().eval(), torch.ones(64, 128))[0] == []
