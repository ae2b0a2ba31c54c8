import numpy as np
import pytest
from classic_models import (
    BATCH,
    HIDDEN,
    INPUTS,
    KINDS,
    MACS_PER_SAMPLE,
    OUTPUTS,
    PARAMETERS,
    call,
    leaving_no_trace,
    make_input,
    make_model,
)
from measure.imaginary import ceilings
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.errors import BackendError, ModelError, SettingError, TinyTorchError
from tinytorch.measure.roofline import classify_bound
from tinytorch.profiling.flops import as_inputs
from tinytorch.profiling.profiler import Profiler

MB = 2**20
MEMORY = {"parameter_memory_mb", "activation_memory_mb", "peak_memory_mb", "memory_efficiency"}
LAYER = MEMORY | {"layer_type", "parameters", "flops", "latency_ms", "gflops_per_second"}
FORWARD = LAYER | {
    "memory_bandwidth_mbs",
    "computational_efficiency",
    "is_memory_bound",
    "is_compute_bound",
    "bottleneck",
}
BACKWARD = {
    "forward_flops",
    "forward_latency_ms",
    "forward_memory_mb",
    "backward_flops",
    "backward_latency_ms",
    "gradient_memory_mb",
    "total_flops",
    "total_latency_ms",
    "total_memory_mb",
    "total_gflops_per_second",
    "optimizer_memory_estimates",
    "bottleneck",
}


@pytest.fixture
def profiler():
    return Profiler(budget_s=0.01)


@pytest.fixture
def known_machine(monkeypatch):
    """Let the machine have ceilings that are known, so that bounds can be computed by hand."""
    found = ceilings()
    monkeypatch.setattr(
        "tinytorch.profiling.model_profile.machine_ceilings", lambda device, **settings: found
    )
    return found


# ---------------------------------------------------------------- one question at a time


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted(kind, profiler):
    assert profiler.count_parameters(make_model(kind)) == PARAMETERS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, BATCH])
def test_flops_are_per_sample_and_independent_of_the_batch(kind, batch, profiler):
    model = make_model(kind)
    with leaving_no_trace(model):
        assert profiler.count_flops(model, (batch, INPUTS)) == 2 * MACS_PER_SAMPLE


@pytest.mark.parametrize("shape", [(1, 512), (64, 512)])
def test_the_golden_layer_in_both_frameworks(shape, profiler):
    torch = require_part("torch")
    for layer in (Linear(512, 512), torch.nn.Linear(512, 512)):
        assert profiler.count_flops(layer, shape) == 524_288


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_what_the_forward_pass_really_allocates(kind, profiler):
    model = make_model(kind)
    getattr(model, "inner", model).eval()
    with leaving_no_trace(model):
        facts = profiler.measure_memory(model, (BATCH, INPUTS))
    hidden, output = BATCH * HIDDEN * 4, BATCH * OUTPUTS * 4
    assert facts.keys() == MEMORY
    assert facts["parameter_memory_mb"] * MB == 4 * PARAMETERS
    # At most two results are alive at once: what a layer reads and what it writes.
    assert output <= facts["activation_memory_mb"] * MB <= 2 * hidden + output
    inputs = BATCH * INPUTS * 4
    resident = facts["parameter_memory_mb"] + inputs / MB
    assert facts["peak_memory_mb"] == pytest.approx(resident + facts["activation_memory_mb"])
    assert facts["memory_efficiency"] == pytest.approx(1 - inputs / MB / facts["peak_memory_mb"])


def test_activations_do_not_follow_the_input_but_what_is_computed(profiler):
    wide = profiler.measure_memory(Linear(4, 1000), (10, 4))
    assert wide["activation_memory_mb"] * MB == 10 * 1000 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_latency_is_the_median_in_milliseconds(kind, profiler):
    model, x = make_model(kind), make_input(kind)
    with leaving_no_trace(model):
        latency = profiler.measure_latency(model, x, warmup=1, iterations=7)
    assert type(latency) is float
    assert profiler.latency.count == 7
    assert latency == profiler.latency.median * 1e3 > 0


def test_a_model_with_only_forward_is_called_as_often_as_asked(profiler):
    class Counting:
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x

    model = Counting()
    profiler.measure_latency(model, 3, warmup=2, iterations=5)
    assert model.calls == 2 + 5 + 1  # and once to see whether it works


# ---------------------------------------------------------------- everything at once


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_s_profile_has_the_keys_of_the_contract(kind, profiler):
    model = make_model(kind)
    with leaving_no_trace(model):
        facts = profiler.profile_layer(model, (BATCH, INPUTS))
    assert facts.keys() >= LAYER
    assert facts["layer_type"] == type(model).__name__
    assert (facts["parameters"], facts["flops"]) == (PARAMETERS, 2 * MACS_PER_SAMPLE)
    assert facts["batch_size"] == BATCH


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_pass_has_the_keys_of_the_contract(kind, profiler, known_machine):
    model, x = make_model(kind), make_input(kind)
    with leaving_no_trace(model):
        facts = profiler.profile_forward_pass(model, x)
    assert facts.keys() >= FORWARD
    assert facts["bottleneck"] in ("memory", "compute")
    assert facts["is_memory_bound"] is (facts["bottleneck"] == "memory")
    assert facts["is_compute_bound"] is not facts["is_memory_bound"]


def test_rates_are_of_the_whole_batch(profiler, known_machine):
    model, x = make_model("core"), make_input("core")
    facts = profiler.profile_forward_pass(model, x)
    seconds = facts["latency_ms"] / 1e3
    assert facts["flops_per_call"] == BATCH * facts["flops"]
    assert facts["gflops_per_second"] == pytest.approx(facts["flops_per_call"] / seconds / 1e9)


def test_the_bottleneck_follows_from_intensity_and_ceilings(profiler, known_machine):
    layer, x = Linear(64, 64, bias=False), Tensor(np.ones((32, 64), np.float32))
    facts = profiler.profile_forward_pass(layer, x)
    moved = 4 * (32 * 64 + 64 * 64 + 32 * 64)
    seconds = facts["latency_ms"] / 1e3
    bound = classify_bound(
        achieved=2 * 32 * 64 * 64 / seconds,
        peak=known_machine.peak_flops("float32"),
        bandwidth=known_machine.bandwidth(moved),
        intensity=2 * 32 * 64 * 64 / moved,
    )
    assert facts["arithmetic_intensity"] == bound.intensity
    assert facts["bottleneck"] == bound.bound
    assert facts["computational_efficiency"] == pytest.approx(bound.efficiency)
    assert facts["attainable_efficiency"] == pytest.approx(bound.of_attainable)
    assert facts["memory_bandwidth_mbs"] == pytest.approx(moved / seconds / MB)


@pytest.mark.parametrize(("peak", "bottleneck"), [(1e3, "compute"), (1e18, "memory")])
def test_another_machine_has_another_bottleneck(peak, bottleneck, profiler, monkeypatch):
    from measure.imaginary import rate

    found = ceilings(rates=(rate("float32", peak),))
    monkeypatch.setattr(
        "tinytorch.profiling.model_profile.machine_ceilings", lambda device, **settings: found
    )
    facts = profiler.profile_forward_pass(make_model("core"), make_input("core"))
    assert facts["bottleneck"] == bottleneck
    assert (facts["computational_efficiency"] > 1) is (peak == 1e3)  # nothing is clamped


def test_the_bottleneck_comes_from_this_machine_s_measured_ceilings(profiler):
    facts = profiler.profile_forward_pass(make_model("core"), make_input("core"))
    assert facts["bottleneck"] in ("memory", "compute")
    assert facts["computational_efficiency"] > 0


def test_a_model_that_computes_nothing_has_no_bottleneck(profiler, known_machine):
    class Nothing(Module):
        def forward(self, x):
            return x

    facts = profiler.profile_forward_pass(Nothing(), make_input("core"))
    assert (facts["bottleneck"], facts["is_memory_bound"]) == (None, None)
    assert "nothing to judge" in facts["bound_note"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_pass_has_the_keys_of_the_contract(kind, profiler, known_machine):
    model, x = make_model(kind), make_input(kind)
    with leaving_no_trace(model):
        facts = profiler.profile_backward_pass(model, x)
    assert facts.keys() >= BACKWARD
    assert facts["optimizer_memory_estimates"].keys() == {"sgd", "adam", "adamw"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_is_run_and_counted_not_doubled(kind, profiler, known_machine):
    model, x = make_model(kind), make_input(kind)
    facts = profiler.profile_backward_pass(model, x)
    first_layer = 2 * INPUTS * HIDDEN  # whose input needs no gradient
    assert facts["forward_flops"] == 2 * MACS_PER_SAMPLE
    assert facts["backward_flops"] == 4 * MACS_PER_SAMPLE - first_layer
    assert facts["total_flops"] == facts["forward_flops"] + facts["backward_flops"]
    assert facts["backward_latency_ms"] > 0
    assert facts["total_latency_ms"] == pytest.approx(
        facts["forward_latency_ms"] + facts["backward_latency_ms"]
    )
    rate = BATCH * facts["total_flops"] / facts["total_latency_ms"] / 1e6
    assert facts["total_gflops_per_second"] == pytest.approx(rate)


@pytest.mark.parametrize("kind", KINDS)
def test_training_memory_is_measured(kind, profiler, known_machine):
    facts = profiler.profile_backward_pass(make_model(kind), make_input(kind))
    parameters = 4 * PARAMETERS / MB
    assert facts["gradient_memory_mb"] == pytest.approx(parameters)
    assert facts["optimizer_memory_estimates"] == pytest.approx(
        {"sgd": 0, "adam": 2 * parameters, "adamw": 2 * parameters}
    )
    assert facts["total_memory_mb"] >= facts["forward_memory_mb"] > parameters


def test_gradients_that_were_there_come_back(profiler, known_machine):
    model, x = make_model("core"), make_input("core")
    call(model, x).sum().backward()
    before = [parameter.grad.copy() for parameter in model.parameters()]
    profiler.profile_backward_pass(model, x)
    for parameter, grad in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(parameter.grad, grad)


def test_several_inputs_are_a_tuple(profiler, known_machine):
    class Product(Module):
        def forward(self, a, b):
            return a @ b

    a, b = Tensor(np.ones((3, 4), np.float32)), Tensor(np.ones((4, 5), np.float32))
    facts = profiler.profile_forward_pass(Product(), as_inputs((a, b)))
    assert facts["flops_per_call"] == 2 * 3 * 4 * 5


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda p: p.measure_latency(ReLU(), 3, iterations=0), "iterations=0"),
        (lambda p: p.measure_latency(ReLU(), 3, warmup=-1), "warmup=-1"),
        (lambda p: p.measure_latency("model", 3), "str is no model"),
        (lambda p: p.profile_forward_pass(Linear, 3), "the class Linear is no model"),
        (lambda p: p.profile_backward_pass(3, 3), "int is no model"),
        (lambda p: p.count_flops(Linear(3, 2), 3), "input_shape=3; give a tuple"),
        (lambda p: p.profile_layer(Linear(3, 2), (0, 3)), "every length is a whole number"),
        (lambda p: p.print_top_operations(0), "n=0"),
        (lambda p: Profiler(budget_s=0), "budget_s=0"),
    ],
)
def test_bad_arguments_are_refused(use, message, profiler):
    with pytest.raises(SettingError, match=message):
        use(profiler)


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_does_not_fit_names_the_layer(kind, profiler):
    model, x = make_model(kind), make_input(kind, 2, INPUTS + 1)
    with leaving_no_trace(model), pytest.raises(TinyTorchError, match=r"0"):
        profiler.measure_latency(model, x)


def test_a_backward_pass_without_anything_to_learn_is_an_error(profiler):
    with pytest.raises(TinyTorchError, match="nothing to run a backward pass from"):
        profiler.profile_backward_pass(ReLU(), make_input("core"))


def test_a_model_that_raises_is_named(profiler):
    class Broken(Module):
        def forward(self, x):
            raise KeyError("lost")

    with pytest.raises(ModelError, match="lost"):
        profiler.measure_latency(Sequential(Broken()), make_input("core"))


def test_an_input_on_another_device_is_refused(profiler):
    torch = require_part("torch")
    with pytest.raises(BackendError, match="the model is on cpu"):
        profiler.measure_latency(torch.nn.Linear(3, 2), torch.ones(1, 3, device="meta"))


# ---------------------------------------------------------------- what a block runs


def test_a_block_of_training_is_watched(capsys):
    x = make_input("core")
    labels = Tensor(np.arange(BATCH) % OUTPUTS)
    model = make_model("core")
    with Profiler() as p:
        model.fit(DataLoader(TensorDataset(x, labels), batch_size=2))
    names = [operation.name for operation in p.operations]
    assert {"Matrix multiplication", "Cross entropy", "Adam update", "ReLU"} <= set(names)
    p.print_top_operations(n=3)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.partition(" - ")[2].partition(" (")[0] for line in lines[:3]]
    assert shown == names[:3]


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_product_is_on_top_of_a_model_that_does_little_else(kind, capsys):
    model, x = make_model(kind), make_input(kind)
    getattr(model, "inner", model).eval()
    with leaving_no_trace(model), Profiler() as p:
        call(model, x)
    p.print_top_operations()
    assert "% - Matrix multiplication (" in capsys.readouterr().out
    assert p.elapsed > 0


def test_elapsed_runs_inside_and_stays_after_the_block():
    with Profiler() as p:
        first, second = p.elapsed, p.elapsed
    assert 0 < first <= second <= p.elapsed == p.elapsed


def test_elapsed_before_any_block_says_so():
    with pytest.raises(SettingError, match="no block was watched yet"):
        _ = Profiler().elapsed


def test_a_profiler_may_be_entered_again_inside_and_used_again_after():
    p, x = Profiler(), Tensor([[1.0]])
    with p:
        _ = x @ x
        with p:
            _ = x @ x
    assert p.operations[0].calls == 2  # not three: the inner block is part of the outer one
    with p:
        _ = x @ x
    assert p.operations[0].calls == 1


def test_profilers_may_be_nested():
    x = Tensor([[1.0]])
    with Profiler() as outer:
        _ = x @ x
        with Profiler() as inner:
            _ = x @ x
    assert (outer.operations[0].calls, inner.operations[0].calls) == (2, 1)


def test_an_exception_passes_and_what_ran_is_known():
    x = Tensor([[1.0]])
    p = Profiler()
    with pytest.raises(IndexError), p:
        _ = (x @ x).data[7]
    assert p.operations[0].calls == 1
    assert p.elapsed > 0


def test_a_block_without_operations_says_so(capsys):
    with Profiler() as p:
        pass
    p.print_top_operations()
    assert "no operation of TinyTorch or PyTorch ran" in capsys.readouterr().out
