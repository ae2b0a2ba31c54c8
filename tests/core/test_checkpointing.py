import copy
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, no_grad, use_backend
from tinytorch.core.autograd import check_gradients
from tinytorch.core.checkpointing import checkpoint, checkpoint_layers, remove_checkpoints
from tinytorch.core.dispatch import recording
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential, Tanh
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Adam
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.core.transformers import GPT
from tinytorch.errors import GraphError, SettingError


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def check_identical(one, other):
    assert one.keys() == other.keys()
    for name, grad in one.items():
        assert grad is not None
        np.testing.assert_array_equal(grad, other[name], err_msg=name)


def train_step(model, ids):
    logits = model(ids)
    rows = logits.reshape(-1, logits.shape[-1])
    loss = CrossEntropyLoss()(rows, Tensor(ids.reshape(-1)))
    loss.backward()
    return loss.item()


def small_gpt(layers=3, **settings):
    return GPT(11, 16, layers, 2, 8, rng=0, **settings)


@pytest.fixture
def ids(rng):
    return rng.integers(0, 11, (2, 8))


# ---------------------------------------------------------------- one function


def test_gradients_are_those_of_central_differences(rng):
    a, b = (Tensor(rng.standard_normal((2, 3)), requires_grad=True) for _ in range(2))
    check_gradients(lambda a, b: checkpoint(lambda x, y: (x * y).exp() + x, a, b).sum(), a, b)
    assert a.grad is not None


def test_only_the_inputs_of_the_function_are_kept():
    x = Tensor(np.ones(3), requires_grad=True)
    y = checkpoint(lambda x: ((x * 2).exp() + 1).log(), x)
    assert y.creator.inputs == (x,)


def test_parameters_inside_get_gradients_although_the_input_has_none(rng):
    layer, x = Linear(3, 2, rng=0), Tensor(rng.standard_normal((4, 3)).astype(np.float32))
    twin = copy.deepcopy(layer)
    layer(x).sum().backward()
    checkpoint(twin, x).sum().backward()
    check_identical(gradients(layer), gradients(twin))


def test_gradients_add_up_over_steps(rng):
    layer, x = Linear(3, 2, rng=0), Tensor(rng.standard_normal((4, 3)).astype(np.float32))
    checkpoint(layer, x).sum().backward()
    once = layer.weight.grad.copy()
    checkpoint(layer, x).sum().backward()
    np.testing.assert_array_equal(layer.weight.grad, 2 * once)


def test_a_tensor_computed_before_gets_its_gradient_through_a_closure():
    x = Tensor([2.0, 3.0], requires_grad=True)
    doubled = x * 2
    y = checkpoint(lambda z: z * doubled, x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, 4 * x.data)
    assert doubled.grad is None


def test_keywords_and_other_arguments_are_passed_on():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = checkpoint(lambda x, power, *, scale: x**power * scale, x, 3, scale=Tensor([2.0, 2.0]))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, [6.0, 24.0])


def test_checkpoints_nest():
    x = Tensor([0.5, 1.5], requires_grad=True)
    calls = Counter()

    def inner(x):
        calls["inner"] += 1
        return x.exp()

    def outer(x):
        calls["outer"] += 1
        return checkpoint(inner, x * 2) + x

    checkpoint(outer, x).sum().backward()
    np.testing.assert_allclose(x.grad, 2 * np.exp(2 * x.data) + 1, rtol=1e-6)
    assert calls == {"outer": 2, "inner": 3}


def test_without_gradients_the_function_runs_once_and_plainly():
    calls = Counter()

    def function(x):
        calls["all"] += 1
        return x * 2

    with no_grad():
        assert checkpoint(function, Tensor([1.0], requires_grad=True)).creator is None
    assert not checkpoint(function, Tensor([1.0])).requires_grad
    assert calls["all"] == 2


def test_the_graph_can_be_kept_for_a_second_backward_pass():
    x = Tensor([3.0], requires_grad=True)
    y = checkpoint(lambda x: x**2, x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [12.0]


def test_the_backward_pass_may_run_under_no_grad():
    x = Tensor([3.0], requires_grad=True)
    y = checkpoint(lambda x: x**2, x).sum()
    with no_grad():
        y.backward()
    assert x.grad.tolist() == [6.0]


def test_a_function_that_gives_its_input_back_hands_the_gradient_on():
    x = Tensor([3.0], requires_grad=True)
    checkpoint(lambda x: x, x).sum().backward()
    assert x.grad.tolist() == [1.0]


def test_several_outputs_are_an_explained_error():
    with pytest.raises(GraphError, match=r"got tuple; .*concatenate"):
        checkpoint(lambda x: (x, x), Tensor([1.0], requires_grad=True))
    with no_grad(), pytest.raises(GraphError, match="got tuple"):
        checkpoint(lambda x: (x, x), Tensor([1.0]))


def test_a_function_that_changes_its_mind_is_an_error():
    sizes = iter((2, 3))
    x = Tensor(np.ones(5, np.float32), requires_grad=True)
    y = checkpoint(lambda x: x[: next(sizes)], x)
    with pytest.raises(GraphError, match=r"\(2,\) of float32 at first and \(3,\)"):
        y.backward(np.ones(2))


def test_the_backend_of_the_forward_pass_computes_it_again():
    seen = []
    x = Tensor([1.0, 2.0], requires_grad=True)
    with use_backend("reference"):
        y = checkpoint(lambda x: x.exp(), x).sum()
    with recording(lambda call: seen.append((call.kind, call.backend, call.phase))):
        y.backward()
    assert ("exp", "reference", "backward") in seen


# ---------------------------------------------------------------- state and random numbers


@pytest.mark.parametrize("form", ["module", "method", "closure", "argument"])
def test_dropout_drops_the_same_elements_again(form, rng):
    x = rng.standard_normal((8, 6)).astype(np.float32)
    plain = Sequential(Linear(6, 6, rng=0), Dropout(0.5, rng=1), Linear(6, 6, rng=2))
    twin = copy.deepcopy(plain)
    forms = {
        "module": lambda t: checkpoint(twin, t),
        "method": lambda t: checkpoint(twin.forward, t),
        "closure": lambda t: checkpoint(lambda x: twin(x), t),
        "argument": lambda t: checkpoint(lambda x, layer: layer(x), t, twin),
    }
    for _ in range(2):  # the generators go on alike afterwards
        (plain(Tensor(x)) ** 2).sum().backward()
        (forms[form](Tensor(x)) ** 2).sum().backward()
    check_identical(gradients(plain), gradients(twin))


def test_running_statistics_change_once(rng):
    x = Tensor(rng.standard_normal((4, 2, 5, 5)).astype(np.float32), requires_grad=True)
    plain = Sequential(Conv2d(2, 3, 3, rng=0), BatchNorm2d(3))
    twin = copy.deepcopy(plain)
    (plain(x) ** 2).sum().backward()
    (checkpoint(twin, x) ** 2).sum().backward()
    check_identical(gradients(plain), gradients(twin))
    check_identical(plain.state_dict(), twin.state_dict())


def test_a_layer_that_counts_in_place_counts_once():
    class Counting(Module):
        def __init__(self):
            self.calls = Tensor(np.zeros(1))

        def forward(self, x):
            self.calls.data += 1
            return x * 2

    layer = Counting()
    checkpoint(layer, Tensor([1.0], requires_grad=True)).sum().backward()
    assert layer.calls.data.tolist() == [1.0]


def test_a_layer_sees_its_buffers_as_they_were_before_it_changed_them_in_place():
    class Growing(Module):
        def __init__(self):
            self.factor = Tensor(np.ones(1))

        def forward(self, x):
            self.factor.data += 1
            return x * self.factor

    layer, x = Growing(), Tensor([1.0], requires_grad=True)
    result = checkpoint(layer, x).sum()
    for time in (1, 2):
        result.backward(retain_graph=True)
        assert x.grad.tolist() == [2.0 * time]
    assert layer.factor.data.tolist() == [2.0]


def test_the_mode_of_the_forward_pass_counts(rng):
    x = Tensor(rng.standard_normal((8, 6)).astype(np.float32), requires_grad=True)
    layer = Dropout(0.5, rng=0)
    y = checkpoint(layer, x)
    dropped = y.data == 0
    layer.eval()
    y.sum().backward()
    np.testing.assert_array_equal(x.grad == 0, dropped)
    assert not layer.training


# ---------------------------------------------------------------- layers of a model


def test_the_blocks_of_a_gpt_are_found():
    assert checkpoint_layers(small_gpt()) == ("blocks.0", "blocks.1", "blocks.2")


def test_a_sequence_of_blocks_is_checkpointed_block_by_block():
    blocks = [Sequential(Linear(4, 4), ReLU()) for _ in range(3)]
    assert checkpoint_layers(Sequential(*blocks, Linear(4, 2))) == (
        "layers.0",
        "layers.1",
        "layers.2",
    )


def test_a_sequence_of_simple_layers_is_checkpointed_in_pieces(rng):
    layers = [layer for seed in range(6) for layer in (Linear(5, 5, rng=seed), Tanh())]
    plain = Sequential(*layers)
    twin = copy.deepcopy(plain)
    assert checkpoint_layers(twin) == ("",)
    x = Tensor(rng.standard_normal((3, 5)).astype(np.float32))
    output = twin(x)
    # pieces of four layers: two keep their result, the last one everything
    assert len(list(kept_tensors(output))) == 2 + 4
    assert len(list(kept_tensors(plain(x)))) == 12
    output.sum().backward()
    plain(x).sum().backward()
    check_identical(gradients(plain), gradients(twin))


def kept_tensors(output):
    """Yield the computed tensors that a graph keeps."""
    pending, seen = [output], set()
    while pending:
        tensor = pending.pop()
        if id(tensor) not in seen and tensor.creator is not None:
            seen.add(id(tensor))
            yield tensor
            pending += tensor.creator.inputs


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("backend", ["reference", "numpy", "numba"])
def test_training_is_the_same_bit_for_bit(dropout, backend, ids):
    if backend == "numba":
        require_part("numba")
    plain = small_gpt(dropout=dropout)
    twin = copy.deepcopy(plain)
    checkpoint_layers(twin)
    with use_backend(backend):
        for model in (plain, twin):
            optimizer = Adam(model.parameters(), lr=0.01)
            for _ in range(3):
                optimizer.zero_grad()
                train_step(model, ids)
                optimizer.step()
    check_identical(gradients(plain), gradients(twin))
    check_identical(plain.state_dict(), twin.state_dict())


def test_names_repr_and_generation_stay(ids):
    plain = small_gpt()
    twin = copy.deepcopy(plain)
    checkpoint_layers(twin)
    assert plain.state_dict().keys() == twin.state_dict().keys()
    assert repr(plain) == repr(twin)
    ours, theirs = (each.generate(ids[0][:3], 4).data for each in (plain, twin))
    np.testing.assert_array_equal(ours, theirs)


def test_recorders_see_the_same_paths_forward_and_the_work_again_backward(ids):
    def seen(model):
        calls = Counter()
        with recording(lambda call: calls.update([(call.phase, call.path, call.kind)])):
            train_step(model, ids)
        return calls

    plain = small_gpt()
    twin = copy.deepcopy(plain)
    checkpoint_layers(twin)
    before, after = seen(plain), seen(twin)
    again = after - before
    assert before - after == Counter()
    assert again == Counter(
        {
            ("backward", path, kind): count
            for (phase, path, kind), count in before.items()
            if phase == "forward" and path is not None and path.startswith("blocks.")
        }
    )


def test_hooks_of_a_checkpointed_layer_run_once_and_those_inside_again(ids):
    model, calls = small_gpt(), Counter()
    checkpoint_layers(model)
    block = model.blocks[1]
    block.register_forward_hook(lambda *_: calls.update(["block"]))
    block.norm1.register_forward_hook(lambda *_: calls.update(["inside"]))
    train_step(model, ids)
    assert calls == {"block": 1, "inside": 2}


def test_copies_are_checkpointed_and_removing_undoes_it(ids):
    model = small_gpt()
    checkpoint_layers(model)
    twin = copy.deepcopy(model)
    remove_checkpoints(model)
    assert [m for m in model.modules() if m._execution] == []
    assert len([m for m in twin.modules() if m._execution]) == 3


def test_layers_can_be_named():
    model = small_gpt()
    assert checkpoint_layers(model, ["blocks.1.mlp"]) == ("blocks.1.mlp",)
    with pytest.raises(SettingError, match=r"no layer 'blocks.9'; it has .*blocks.0"):
        checkpoint_layers(model, ["blocks.9"])


def test_a_model_without_blocks_asks_for_names():
    with pytest.raises(SettingError, match=r"Linear has no repeated blocks.*name the layers"):
        checkpoint_layers(Linear(2, 2))
    with pytest.raises(SettingError, match="works on modules, got int"):
        checkpoint_layers(3)


def test_the_peak_memory_of_a_training_step_of_a_deep_model_goes_down(ids):
    model = GPT(11, 32, 12, 2, 8, rng=0)
    batch = np.tile(ids, (16, 1))

    def peak_bytes():
        model.zero_grad()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            train_step(model, batch)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    with use_backend("numpy"):
        train_step(model, batch)
        plain = peak_bytes()
        checkpoint_layers(model)
        # Twelve blocks keep their inputs, one of them all: a quarter, and some for gradients.
        assert peak_bytes() < 0.4 * plain
