import pytest
from parts import require_part

require_part("torch")

import torch

from tinytorch.models.workload import Workload
from tinytorch.tuning import saving_torch as compiling_anew_torch
from tinytorch.tuning.catalog import find_entries
from tinytorch.tuning.saving_torch import forget_compiled
from tinytorch.tuning.trying import build_stack


class Broken(torch.nn.Module):
    """A model in two graphs: what follows the break is kept with the code of this class."""

    def forward(self, x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2


@pytest.fixture
def compiled_graphs():
    """Count the graphs that are made."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    def compile_one():
        # An object of its own for each, as compilers with settings are.
        own = lambda graph, inputs: backend(graph, inputs)  # noqa: E731
        before = len(made)
        torch.compile(Broken(), backend=own)(torch.ones(2))
        return len(made) - before

    forget_compiled()
    yield compile_one
    forget_compiled()


@pytest.mark.filterwarnings("ignore")
def test_every_model_of_a_class_is_compiled(compiled_graphs):
    found = []
    for _ in range(12):
        forget_compiled()
        found.append(compiled_graphs())
    assert min(found) == max(found) > 0


def test_every_stack_is_built_as_if_nothing_had_been_compiled(monkeypatch):
    forgotten = []
    monkeypatch.setattr(compiling_anew_torch, "forget_compiled", lambda: forgotten.append(1))
    workload = Workload("line", torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    build_stack(workload, find_entries(["inference-mode"]))
    build_stack(workload, find_entries(["inference-mode"]))
    assert len(forgotten) == 2
