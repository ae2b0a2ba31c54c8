import gc
import tracemalloc

import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, Workload, load_workload
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.errors import BackendError, ModelError, SettingError
from tinytorch.models.core import CoreAdapter
from tinytorch.profiling import model_profile as turns
from tinytorch.profiling.flops import count_flops
from tinytorch.profiling.layers import BACKWARD, UPDATE
from tinytorch.profiling.model_profile import profile_model, profile_workload

X = Tensor(np.ones((4, 8), np.float32))


def mlp():
    return Sequential(Linear(8, 16, rng=0), ReLU(), Linear(16, 4, rng=1))


def quick(model, *inputs, **settings):
    return profile_model(model, *inputs, **{"runs": 3, "ceilings": False, **settings})


def torch_mlp():
    torch = require_part("torch")
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


class Spend(Module):
    """A layer that takes a known time on a clock of the test's own."""

    now = 0.0

    def __init__(self, seconds):
        self.seconds = seconds

    def forward(self, x):
        Spend.now += self.seconds
        return x


@pytest.fixture
def steady_clock(monkeypatch):
    """Let time pass only where a layer spends it, so that the arithmetic can be exact."""
    monkeypatch.setattr(CoreAdapter, "stamp", lambda self, device: lambda: Spend.now)
    monkeypatch.setattr(turns, "perf_counter", lambda: Spend.now)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_the_times_of_layers_and_the_rest_add_up_to_the_total(name):
    profile = profile_workload(load_workload(name), runs=5, ceilings=False)
    own = sum(layer.self_s for layer in profile.layers)
    assert own == pytest.approx(profile.layer("").time_s, rel=1e-9)
    assert profile.layer("").time_s + profile.unattributed_s == pytest.approx(profile.total_s)
    assert all(layer.self_s >= 0 for layer in profile.layers)
    assert profile.unattributed_s >= 0


def test_a_layer_has_the_time_that_it_takes(steady_clock):
    profile = quick(Sequential(Spend(2.0), Sequential(Spend(1.0), Spend(5.0))), X)
    assert profile.total_s == pytest.approx(8.0)
    assert profile.layer("layers.1").time_s == pytest.approx(6.0)
    assert profile.layer("layers.1").self_s == pytest.approx(0.0)
    assert profile.layer("layers.1.layers.1").time_s == pytest.approx(5.0)
    assert profile.bottleneck.name == "layers.1.layers.1"
    assert profile.bottleneck.share == pytest.approx(0.625)
    assert profile.unattributed_s == pytest.approx(0.0)
    assert profile.overhead == pytest.approx(0.0)


def test_amdahl_predicts_what_replacing_a_layer_brings(steady_clock):
    slow = quick(Sequential(Spend(2.0), Spend(6.0)), X)
    fast = quick(Sequential(Spend(2.0), Spend(3.0)), X)
    predicted = slow.bottleneck.speedup_if(2)
    assert predicted == pytest.approx(slow.latency.median / fast.latency.median)


def test_costs_are_those_of_one_call():
    profile = quick(mlp(), X)
    assert profile.macs == 4 * (8 * 16 + 16 * 4)
    assert profile.layer("layers.0").macs == 4 * 8 * 16
    assert profile.parameter_count == 8 * 16 + 16 + 16 * 4 + 4
    assert profile.not_counted == ()
    assert profile.examples == 4


def test_both_frameworks_give_the_same_costs():
    torch = require_part("torch")
    ours, theirs = quick(mlp(), X), quick(torch_mlp(), torch.ones(4, 8))
    assert ours.macs == theirs.macs
    assert ours.parameter_count == theirs.parameter_count
    assert ours.memory.peak_activation_bytes == theirs.memory.peak_activation_bytes
    assert [layer.macs for layer in ours.layers] == [layer.macs for layer in theirs.layers]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", None])
@pytest.mark.parametrize("framework", ["core", "pytorch"])
def test_a_training_step_has_backward_and_update(framework, optimizer):
    if framework == "core":
        model, x = mlp(), X
    else:
        torch = require_part("torch")
        model, x = torch_mlp(), torch.ones(4, 8)
    profile = quick(model, x, training=True, optimizer=optimizer)
    paths = [layer.path for layer in profile.layers]
    assert BACKWARD in paths
    assert (UPDATE in paths) == (optimizer is not None)
    assert profile.flops == count_flops(model, x, backward=True)
    held = profile.memory.peak_by_category
    weights = 4 * profile.parameter_count
    assert held["gradients"] + held.get("temporaries", 0) <= 1.5 * weights + 4 * 4 * 20 * 4
    adam_state = 2 * weights if optimizer in ("adam", "adamw") else 0
    assert held.get("optimizer state", 0) == pytest.approx(adam_state, abs=4 * 8)


def test_a_trained_model_has_its_old_parameters_and_gradients_again(rng):
    model = mlp()
    first = model.parameters()[0]
    first.grad = grad = rng.normal(size=first.shape)
    before = [parameter.data.copy() for parameter in model.parameters()]
    quick(model, X, training=True)
    assert first.grad is grad
    for parameter, values in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(parameter.data, values)


def test_nothing_is_disturbed():
    torch = require_part("torch")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Dropout(0.5)
    )
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    collecting, tracing = gc.isenabled(), tracemalloc.is_tracing()
    quick(model, torch.ones(2, 1, 8, 8))
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert all(torch.equal(b, statistics[name]) for name, b in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any("forward" in vars(module) for module in model.modules())
    assert (gc.isenabled(), tracemalloc.is_tracing()) == (collecting, tracing)


def test_nothing_is_left_behind_by_a_model_that_raises():
    torch = require_part("torch")
    layers = [torch.nn.Linear(4, 4) for _ in range(7)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(5, 4))
    with pytest.raises(ModelError, match=r"layer '7' \(Linear\)"):
        quick(model, torch.ones(2, 4))
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_random_layer_is_noted():
    profile = quick(Sequential(Linear(8, 8), Dropout(0.5, rng=0)), X)
    assert any("not deterministic: 'layers.1'" in note for note in profile.notes)


def test_no_inputs_is_an_error_that_says_what_to_give():
    with pytest.raises(SettingError, match="workload 'empty' has no example inputs"):
        profile_workload(Workload("empty", mlp(), ()))


@pytest.mark.parametrize("runs", [0, -3])
def test_a_profile_needs_a_run(runs):
    with pytest.raises(SettingError, match=f"runs={runs}"):
        quick(mlp(), X, runs=runs)


def test_one_run_is_enough():
    assert quick(mlp(), X, runs=1).latency.count == 1


def test_a_budget_must_be_positive():
    with pytest.raises(SettingError, match="budget_s=0"):
        quick(mlp(), X, budget_s=0)


def test_inputs_elsewhere_are_an_error_that_names_both_places():
    torch = require_part("torch")
    with pytest.raises(BackendError, match=r"an input \(4, 8\) is on meta, the model is on cpu"):
        quick(torch_mlp(), torch.ones(4, 8, device="meta"))


def test_bounds_come_from_ceilings_measured_here():
    profile = profile_workload(load_workload("cnn"), runs=3)
    assert profile.ceilings is not None
    bound = profile.model_bound
    assert bound is not None
    assert bound.bound in ("memory", "compute")
    assert bound.efficiency > 0
    relu = profile.bound(profile.layer("layers.4"))
    assert relu is not None
    assert relu.is_memory_bound  # one operation per eight bytes


def test_a_large_product_is_compute_bound_and_a_large_sum_memory_bound():
    rng = np.random.default_rng(0)
    big = Tensor(rng.standard_normal((1024, 1024)).astype(np.float32))
    product = profile_model(lambda x: x @ x, big, runs=3)
    total = profile_model(lambda x: x + x, Tensor(rng.standard_normal(1 << 24)), runs=3)
    assert product.model_bound is not None
    assert total.model_bound is not None
    assert product.model_bound.is_compute_bound
    assert total.model_bound.is_memory_bound


def test_python_allocations_include_what_the_kernels_need_inside():
    profile = profile_workload(load_workload("cnn"), runs=1, ceilings=False)
    assert profile.traced_peak_bytes is not None
    assert profile.traced_peak_bytes >= profile.memory.peak_activation_bytes


def test_a_compiled_model_is_timed_as_a_whole_and_not_compiled_again():
    torch = require_part("torch")
    counting = require_part("torch._dynamo.testing").CompileCounter()
    model = torch.compile(torch_mlp(), backend=counting)
    x = torch.ones(4, 8)
    with torch.no_grad():
        model(x)
    assert counting.frame_count == 1
    profile = quick(model, x)
    assert counting.frame_count == 1
    assert profile.macs == 4 * (8 * 16 + 16 * 4)
    assert any("compiled module" in note for note in profile.notes)
    assert profile.bottleneck.name == ""


def test_an_image_without_a_batch_is_no_batch_of_channels():
    torch = require_part("torch")
    assert quick(torch.nn.Conv2d(3, 8, 3), torch.ones(3, 8, 8)).throughput is None
    assert quick(torch.nn.Conv2d(3, 8, 3), torch.ones(2, 3, 8, 8)).examples == 2


def test_a_layer_that_only_moves_bytes_is_memory_bound():
    torch = require_part("torch")
    profile = profile_model(torch.nn.Embedding(1000, 64), torch.arange(64).view(8, 8), runs=3)
    assert profile.model_bound is not None
    assert profile.model_bound.is_memory_bound
    assert "memory" in str(profile.to_dict()["facts"])


def test_layers_that_run_again_in_the_backward_pass_belong_to_it():
    torch = require_part("torch")
    checkpoint = require_part("torch.utils.checkpoint").checkpoint

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = torch_mlp()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    profile = quick(Checkpointed(), torch.ones(4, 8), training=True)
    assert profile.layer("block").calls == 1
    for layer in profile.layers:
        assert layer.self_s >= 0
        assert layer.time_s <= profile.total_s
    inner = [profile.layer(f"block.{number}") for number in range(3)]
    assert sum(layer.time_s for layer in inner) <= profile.layer("block").time_s


def test_inputs_may_go_in_by_name():
    torch = require_part("torch")

    class ByName(torch.nn.Module):
        def forward(self, *, left, right):
            return left @ right

    given = {"left": torch.ones(2, 3), "right": torch.ones(3, 4)}
    assert quick(ByName(), keywords=given).macs == 2 * 3 * 4
    with pytest.raises(SettingError, match=r"no setting \['left', 'right'\]"):
        quick(ByName(), **given)


def test_a_function_on_torch_tensors_is_recorded_by_torch():
    torch = require_part("torch")
    profile = quick(lambda x: x @ x, torch.ones(4, 4))
    assert (profile.framework, profile.macs) == ("pytorch", 64)


def test_a_generator_has_computed_nothing():
    def lazily(x):
        yield x

    with pytest.raises(ModelError, match="returned a generator, which has computed nothing yet"):
        quick(lazily, X)


def test_work_in_another_thread_is_noted_as_not_seen():
    torch = require_part("torch")
    from concurrent.futures import ThreadPoolExecutor

    class Threaded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)
            self.outer = torch.nn.Linear(8, 8)

        def forward(self, x):
            with ThreadPoolExecutor(1) as pool:
                return self.outer(pool.submit(self.inner, x).result())

    profile = quick(Threaded(), torch.ones(4, 8))
    assert any("'inner' ran, but no operation of theirs was seen" in n for n in profile.notes)


def test_what_nobody_can_see_is_said():
    profile = quick(lambda x: Tensor(np.sqrt(x.data)), X)
    assert any("no operation was recorded" in note for note in profile.notes)


def test_a_model_that_fails_later_is_an_error_that_says_so():
    calls = iter(range(100))

    def failing(x):
        if next(calls) > 5:
            raise ZeroDivisionError("too often")
        return x * 2

    with pytest.raises(ModelError, match="worked at first, and later raised ZeroDivisionError"):
        quick(failing, X, runs=20)


def test_training_mode_in_an_inference_profile_is_noted():
    torch = require_part("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    assert any(
        "changes BatchNorm1d; call model.eval()" in n for n in quick(model, torch.ones(4, 8)).notes
    )
    assert not any("training mode" in n for n in quick(model.eval(), torch.ones(4, 8)).notes)


def test_a_meta_model_cannot_be_timed():
    torch = require_part("torch")
    with pytest.raises(BackendError, match="the meta device, which computes nothing"):
        quick(torch.nn.Linear(8, 8, device="meta"), torch.ones(4, 8, device="meta"))
