import subprocess
import sys

import pytest
from parts import require_part
from project_files import ROOT

torch = require_part("torch")

from tinytorch.profiling.torch import (
    OperatorClock,
    OperatorMode,
    load_dispatcher,
    metering_tensors,
)


def kinds_in(block):
    seen = []
    with OperatorClock(lambda kind, seconds: seen.append((kind, seconds))):
        block()
    return seen


def test_operators_are_named_as_in_the_cost_table():
    seen = kinds_in(lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 4)).add_(1))
    assert [kind for kind, _ in seen] == ["aten.ones", "aten.ones", "aten.mm", "aten.add"]
    assert all(seconds >= 0 for _, seconds in seen)


def test_the_backward_pass_is_seen():
    layer = torch.nn.Linear(3, 2)
    seen = kinds_in(lambda: layer(torch.ones(4, 3)).sum().backward())
    assert [kind for kind, _ in seen].count("aten.mm") == 1  # the gradient of the weight


def test_results_are_what_they_are_without_it():
    x = torch.arange(6.0).reshape(2, 3)
    with OperatorClock(lambda kind, seconds: None):
        watched = torch.softmax(x, -1) @ x.T
    assert torch.equal(watched, torch.softmax(x, -1) @ x.T)


def test_clocks_may_be_nested():
    outer, inner = [], []
    with OperatorClock(lambda kind, seconds: outer.append(kind)):
        torch.ones(2)
        with OperatorClock(lambda kind, seconds: inner.append(kind)):
            torch.zeros(2)
    assert (outer, inner) == (["aten.ones", "aten.zeros"], ["aten.zeros"])


def test_a_tensor_of_tensors_is_seen_by_what_it_runs():
    class Doubled(torch.Tensor):
        """Half of the truth, which is unfolded by every operator."""

        @staticmethod
        def __new__(cls, half):
            return torch.Tensor._make_wrapper_subclass(cls, half.shape, dtype=half.dtype)

        def __init__(self, half):
            self.half = half

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*(2 * arg.half if isinstance(arg, Doubled) else arg for arg in args))

    seen = []
    tensor = Doubled(torch.ones(3))
    with OperatorClock(lambda kind, seconds: seen.append(kind)):
        total = tensor.sum()
    assert total.item() == 6
    assert seen == ["aten.mul", "aten.sum"]


def test_a_mode_that_does_not_watch_is_an_error():
    try:
        with OperatorMode():
            torch.ones(1)
    except NotImplementedError:
        raised = True
    assert raised


def test_loading_the_dispatcher_changes_nothing_that_shows():
    before = torch.get_rng_state()
    load_dispatcher()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_what_torch_loads_for_it_is_nobody_s_time_or_memory():
    code = """
import torch
from tinytorch.profiling.memory_profiler import MemoryTracker
with MemoryTracker() as tracker:
    torch.ones(4).neg()
import sys
sys.stdout.write(str(tracker.peak_usage))
"""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # The modules are 65 MB; what a first operator itself allocates are some kilobytes.
    assert float(ran.stdout) < 1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_an_operator_that_takes_functions_is_one_operator():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, 8)
    results = []
    seen = kinds_in(lambda: results.append(flex_attention(q, q, q)))
    assert "flex_attention" in [kind for kind, _ in seen]
    # compiled and not compiled code round differently
    torch.testing.assert_close(results[0], flex_attention(q, q, q))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_memory_of_an_operator_that_takes_functions_is_measured():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, 8)
    with metering_tensors() as memory:
        result = flex_attention(q, q, q)
    assert memory.current_bytes >= result.nbytes


def test_what_insists_on_being_compiled_runs():
    double = torch.compile(lambda x: 2 * x, backend="eager", fullgraph=True)
    results = []
    kinds_in(lambda: results.append(double(torch.ones(3))))
    assert results[0].tolist() == [2.0, 2.0, 2.0]
