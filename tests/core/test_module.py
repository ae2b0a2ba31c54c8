"""The tree of layers: names, sharing, modes, state, copies, display, training."""

import copy
import pickle

import numpy as np
import pytest

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.losses import MSELoss
from tinytorch.core.module import Execution, Module, entry_point
from tinytorch.core.optimizers import SGD
from tinytorch.core.spatial import BatchNorm2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.core.training import EarlyStopping, History
from tinytorch.errors import CheckpointError, TinyTorchError


class Branches(Module):
    """Layers in every kind of container, nested, and a parameter in each."""

    def __init__(self):
        self.first = Linear(2, 2, rng=0)
        self.many = [Linear(2, 2, rng=1), (ReLU(), Linear(2, 2, rng=2))]
        self.named = {"a": Linear(2, 2, bias=False, rng=3), "b": {"c": [Parameter(np.ones(1))]}}
        self.scale = Parameter(np.ones(2, np.float32))
        self.learned = Tensor([1.0], requires_grad=True)
        self.buffer = Tensor([5.0])
        self.width = 2
        self.nothing = None

    def forward(self, x):
        return self.many[1][1](self.many[0](self.first(x))) * self.scale


class Doubled(Module):
    """One layer under two names, in a block that stands in two places."""

    def __init__(self):
        self.block = Sequential(Linear(2, 2, rng=0))
        self.again = self.block
        self.inner = self.block[0]
        self.tied = self.block[0].weight

    def forward(self, x):
        return self.again(self.block(x))


def values(model):
    return {name: array.copy() for name, array in model.state_dict().items()}


def assert_equal_states(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.fixture
def x(rng):
    return Tensor(rng.standard_normal((3, 2)).astype(np.float32))


# ---------------------------------------------------------------- names


def test_modules_are_named_by_the_path_to_them():
    model = Branches()
    assert [name for name, _ in model.named_modules()] == [
        "",
        "first",
        "many.0",
        "many.1.0",
        "many.1.1",
        "named.a",
    ]
    assert [name for name, _ in model.named_children()][:2] == ["first", "many.0"]
    assert next(model.modules()) is model
    assert dict(model.named_modules("net"))["net.named.a"] is model.named["a"]


def test_parameters_are_named_by_the_path_to_them():
    names = [name for name, _ in Branches().named_parameters()]
    assert names == [
        "named.b.c.0",
        "scale",
        "learned",
        "first.weight",
        "first.bias",
        "many.0.weight",
        "many.0.bias",
        "many.1.1.weight",
        "many.1.1.bias",
        "named.a.weight",
    ]


def test_parameters_is_a_list_and_their_elements_are_counted():
    model = Branches()
    assert isinstance(model.parameters(), list)
    assert model.num_parameters() == 3 * 6 + 4 + 1 + 2 + 1


def test_other_tensors_are_buffers():
    assert [name for name, _ in Branches().named_buffers()] == ["buffer"]


def test_a_frozen_parameter_stays_a_parameter():
    layer = Linear(2, 2)
    layer.weight.requires_grad = False
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]


def test_what_is_shared_comes_once_under_its_first_name():
    model = Doubled()
    assert [name for name, _ in model.named_parameters()] == ["tied", "block.layers.0.bias"]
    assert [name for name, _ in model.named_modules()] == ["", "block", "block.layers.0"]
    assert model.num_parameters() == 6


def test_a_shared_parameter_gets_the_gradients_of_both_places(x):
    model = Doubled()
    model(x).sum().backward()
    weight, bias = model.block[0].weight, model.block[0].bias
    twin_weight, twin_bias = (Tensor(p.data.copy(), requires_grad=True) for p in (weight, bias))
    ((x @ twin_weight + twin_bias) @ twin_weight + twin_bias).sum().backward()
    # Sums of a dozen products of order one in float32.
    np.testing.assert_allclose(weight.grad, twin_weight.grad, atol=1e-5)
    np.testing.assert_allclose(bias.grad, twin_bias.grad, atol=1e-5)


def test_a_module_that_holds_its_owner_is_walked_once():
    parent, child = Sequential(ReLU()), Linear(1, 1)
    parent.extra = child
    child.owner = parent
    assert [name for name, _ in parent.named_modules()] == ["", "layers.0", "extra"]


# ---------------------------------------------------------------- modes, gradients, dtype


def test_modes_reach_every_layer():
    model = Sequential(Dropout(), Sequential(Dropout(), BatchNorm2d(1)))
    assert all(module.training for module in model.modules())
    assert model.eval() is model
    assert not any(module.training for module in model.modules())
    assert model.train() is model
    assert all(module.training for module in model.modules())
    model.train(False)
    assert not any(module.training for module in model.modules())


def test_zero_grad_forgets_every_gradient(x):
    model = Branches()
    model(x).sum().backward()
    assert model.first.weight.grad is not None
    model.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_astype_converts_floating_point_tensors_in_place():
    model = Sequential(Linear(2, 2), BatchNorm2d(2))
    model.counts = Tensor(np.arange(3))
    weight = model[0].weight
    assert model.astype(np.float64) is model
    assert model[0].weight is weight
    assert {array.dtype for array in model.state_dict().values()} == {
        np.dtype(np.float64),
        np.dtype(np.int64),
    }


# ---------------------------------------------------------------- state


def test_a_state_loads_into_another_model_and_is_copied():
    model, other = Branches(), Branches()
    other.first.weight.data = other.first.weight.data + 1
    other.load_state_dict(model.state_dict())
    assert_equal_states(other.state_dict(), model.state_dict())
    model.first.weight.data[:] = 9
    assert not np.array_equal(other.first.weight.data, model.first.weight.data)


def test_a_state_holds_buffers_and_is_converted_to_the_dtype_of_the_model():
    model = Sequential(BatchNorm2d(2))
    state = {name: array.astype(np.float64) + 1 for name, array in model.state_dict().items()}
    model.load_state_dict(state)
    assert model[0].running_mean.data.tolist() == [1, 1]
    assert model[0].running_mean.dtype == np.float32


def test_loading_keeps_what_is_shared_shared():
    model = Doubled()
    model.load_state_dict({name: array + 1 for name, array in model.state_dict().items()})
    assert model.tied is model.block[0].weight is model.again[0].weight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(extra=np.zeros(1)), "unknown key 'extra'"),
        (lambda state: state.pop("many.1.1.bias"), "missing key 'many.1.1.bias'"),
        (
            lambda state: state.update({"first.weight": np.zeros((2, 3))}),
            r"'first.weight' has shape \(2, 3\), the model needs \(2, 2\)",
        ),
        (
            lambda state: state.update({"scale": np.zeros((1, 2))}),
            r"'scale' has shape \(1, 2\), the model needs \(2,\)",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_an_error_and_nothing_changes(change, message):
    model = Branches()
    before = values(model)
    state = {name: array + 1 for name, array in before.items()}
    change(state)
    with pytest.raises(CheckpointError, match=f"state does not fit Branches: {message}"):
        model.load_state_dict(state)
    assert_equal_states(model.state_dict(), before)


def test_values_that_are_no_numbers_change_nothing():
    model = Branches()
    before = values(model)
    state = {name: array + 1 for name, array in before.items()}
    state["named.a.weight"] = np.full((2, 2), "text")
    with pytest.raises(
        CheckpointError, match=r"'named\.a\.weight' holds <U4, the model needs float"
    ):
        model.load_state_dict(state)
    assert_equal_states(model.state_dict(), before)


@pytest.mark.parametrize("kind", [Tensor, lambda array: array.tolist()])
def test_a_state_of_tensors_or_lists_is_taken_too(kind):
    model, other = Linear(2, 3, rng=0), Linear(2, 3, rng=1)
    other.load_state_dict({name: kind(array) for name, array in model.state_dict().items()})
    assert_equal_states(other.state_dict(), model.state_dict())
    assert type(other.weight.data) is np.ndarray


def test_many_problems_are_counted():
    with pytest.raises(CheckpointError, match=r"; and 7 more$"):
        Branches().load_state_dict({"unknown": np.zeros(1)})


# ---------------------------------------------------------------- copies and display


def test_a_deep_copy_is_equal_and_independent(x):
    model = Branches().eval()
    twin = copy.deepcopy(model)
    assert_equal_states(twin.state_dict(), model.state_dict())
    assert not twin.training
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
    before = model(x).data
    np.testing.assert_array_equal(twin(x).data, before)
    for parameter in twin.parameters():
        parameter.data[...] = 0
    np.testing.assert_array_equal(model(x).data, before)


def test_a_deep_copy_keeps_what_is_shared_shared():
    twin = copy.deepcopy(Doubled())
    assert twin.again is twin.block
    assert twin.inner is twin.block[0]
    assert twin.tied is twin.block[0].weight
    assert twin.num_parameters() == 6


def test_a_deep_copy_keeps_kinds_and_frozen_parameters():
    layer = Linear(2, 2)
    layer.weight.requires_grad = False
    twin = copy.deepcopy(layer)
    assert isinstance(twin.weight, Parameter)
    assert not twin.weight.requires_grad
    assert twin.bias.requires_grad


def test_hooks_are_not_copied(x):
    model, seen = Sequential(ReLU()), []
    model[0].register_forward_hook(lambda *_: seen.append("after"))
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    twin = copy.deepcopy(model)
    twin(x)
    assert seen == []
    twin.register_forward_hook(lambda *_: seen.append("of the twin"))
    model(x)
    assert seen == ["before", "after"]


def test_a_model_can_be_pickled(x):
    model = Sequential(Linear(2, 3), Dropout(0.5, rng=1), ReLU()).eval()
    twin = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(twin(x).data, model(x).data)


def test_repr_shows_the_structure():
    model = Sequential(Linear(2, 3), Sequential(ReLU(), Dropout(0.1)))
    assert repr(model) == (
        "Sequential(\n"
        "  (layers.0): Linear(2, 3, bias=True)\n"
        "  (layers.1): Sequential(\n"
        "    (layers.0): ReLU()\n"
        "    (layers.1): Dropout(p=0.1)\n"
        "  )\n"
        ")"
    )


# ---------------------------------------------------------------- training


@pytest.fixture
def loader(rng):
    inputs = rng.standard_normal((40, 2)).astype(np.float32)
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).astype(np.int64)), 8, seed=0)


def test_train_with_a_loader_is_fit(loader):
    models = [Sequential(Linear(2, 8, rng=0), ReLU(), Linear(8, 2, rng=1)) for _ in range(2)]
    histories = [models[0].fit(loader), models[1].train(loader)]
    assert all(isinstance(history, History) for history in histories)
    assert histories[0] == histories[1]
    assert_equal_states(models[0].state_dict(), models[1].state_dict())


def test_fit_takes_a_loss_an_optimizer_and_epochs(loader, rng):
    inputs = rng.standard_normal((16, 2)).astype(np.float32)
    data = DataLoader(TensorDataset(inputs, inputs.sum(axis=1, keepdims=True)), 4)
    model = Linear(2, 1, rng=0)
    history = model.fit(data, MSELoss(), SGD(model.parameters(), lr=0.1), epochs=30)
    losses = history.values("loss")
    assert len(losses) == 30
    assert losses[-1] < 1e-3 * losses[0]


def test_fit_of_a_model_without_parameters_is_an_error(loader):
    with pytest.raises(TinyTorchError, match="at least one parameter, got none"):
        ReLU().fit(loader)


def test_a_tensor_that_was_computed_is_no_part_of_the_state():
    class Remembers(Module):
        def __init__(self):
            self.layer = Linear(2, 2, rng=0)

        def forward(self, x):
            self.last = self.layer(x)
            return self.last

    model = Remembers()
    model(Tensor([[1.0, 2.0]]))
    assert [name for name, _ in model.named_parameters()] == ["layer.weight", "layer.bias"]
    assert set(model.state_dict()) == {"layer.weight", "layer.bias"}


def test_fractions_do_not_load_into_integers():
    class Holds(Module):
        def __init__(self):
            self.table = Tensor(np.zeros(3, np.int8))

    model = Holds()
    with pytest.raises(CheckpointError, match="'table' holds float64, the model needs int8"):
        model.load_state_dict({"table": np.array([0.5, 300.7, -1.2])})
    assert not model.table.data.any()


def test_a_module_that_knows_its_parent_can_be_shown():
    parent, child = Sequential(), Linear(1, 1)
    child.parent = parent
    parent.layers.append(child)
    assert "Linear" in repr(parent)


def test_fit_takes_validation_data_and_settings_of_the_trainer():
    data = DataLoader(TensorDataset(np.eye(4, dtype=np.float32), np.arange(4)), batch_size=2)
    model = Linear(4, 4, rng=0)
    history = model.fit(data, epochs=3, validation=data, early_stopping=EarlyStopping(patience=3))
    assert len(history.values("validation_loss")) == 3


def test_training_mode_may_be_a_number():
    assert Linear(1, 1).train(0).training is False


# ---------------------------------------------------------------- how a module is run


class Doubling(Module):
    def forward(self, x, *, times=1):
        return x * (2 * times)

    @entry_point
    def again(self, x):
        return x * 2


def test_the_forward_pass_can_be_run_by_another_function_and_other_entry_points_are_not():
    calls = []

    def around(module, forward, *inputs, **settings):
        calls.append((module, inputs, settings))
        return forward(*inputs, **settings) + 1

    layer, x = Doubling(), Tensor([1.0])
    layer._execution = Execution(around_forward=around)
    assert layer(x, times=2).data.tolist() == [5.0]
    assert layer.again(x).data.tolist() == [2.0]
    assert calls == [(layer, (x,), {"times": 2})]


def test_hooks_see_the_result_of_the_function_around():
    layer, seen = Doubling(), []
    layer._execution = Execution(around_forward=lambda module, forward, x: forward(x) + 1)
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.item()))
    layer(Tensor([1.0]))
    assert seen == [3.0]


def test_how_a_module_is_run_goes_with_copies_and_not_with_files():
    layer = Doubling()
    layer._execution = Execution(around_forward=lambda module, forward, x: forward(x) + 1)
    assert copy.copy(layer)._execution is layer._execution
    assert copy.deepcopy(layer)._execution is layer._execution
    assert pickle.loads(pickle.dumps(layer))._execution is None
    assert (layer.state_dict(), list(layer.named_children())) == ({}, [])
