"""Optimizers against PyTorch, step by step, and their state."""

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.dispatch import recording, use_backend
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.losses import MSELoss
from tinytorch.core.optimizers import SGD, Adam, AdamW, Optimizer
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import CheckpointError, SettingError

BACKENDS = ["numpy", "reference"]
RULES = {
    "sgd": (SGD, {"lr": 0.1}),
    "sgd with momentum": (SGD, {"lr": 0.05, "momentum": 0.9}),
    "sgd with weight decay": (SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "sgd with both": (SGD, {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.1}),
    "adam": (Adam, {"lr": 0.05}),
    "adam with its defaults": (Adam, {}),
    "adam with weight decay": (Adam, {"lr": 0.05, "weight_decay": 0.1}),
    "adam with other betas": (Adam, {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-3}),
    "adamw": (AdamW, {"lr": 0.05, "weight_decay": 0.2}),
    "adamw with its defaults": (AdamW, {}),
}
STEPS = 20


def make(name, params):
    kind, settings = RULES[name]
    return kind(params, **settings)


def network(seed=0):
    rng = np.random.default_rng(seed)
    return Sequential(Linear(4, 6, rng=rng), ReLU(), Linear(6, 2, rng=rng))


def batches(count, seed=1, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((8, 4)).astype(dtype), rng.standard_normal((8, 2)).astype(dtype))
        for _ in range(count)
    ]


def take_step(model, optimizer, batch):
    optimizer.zero_grad()
    MSELoss()(model(Tensor(batch[0])), batch[1]).backward()
    optimizer.step()


# ---------------------------------------------------------------- against PyTorch


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", RULES)
def test_twenty_steps_are_those_of_pytorch(name, dtype, backend):
    torch = require_part("torch")
    ours = network().astype(dtype)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    theirs.to(torch.from_numpy(np.zeros(1, dtype)).dtype)
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    for mine, other in pairs:
        other.data = torch.tensor(np.ascontiguousarray(mine.data.T))
    kind, settings = RULES[name]
    optimizer = kind(ours.parameters(), **settings)
    their_optimizer = getattr(torch.optim, kind.__name__)(theirs.parameters(), **settings)
    # A step moves a weight of order one by at most lr, with a few roundings; twenty steps add them
    # up, and Adam divides by roots of small numbers, which makes them ten times larger.
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    with use_backend(backend):
        for inputs, targets in batches(STEPS, dtype=dtype):
            take_step(ours, optimizer, (inputs, targets))
            their_optimizer.zero_grad()
            output = theirs(torch.tensor(inputs))
            torch.nn.functional.mse_loss(output, torch.tensor(targets)).backward()
            their_optimizer.step()
            for mine, other in pairs:
                wanted = other.detach().numpy().T
                np.testing.assert_allclose(mine.data, wanted, rtol=0, atol=tolerance)
                assert mine.data.dtype == dtype


@pytest.mark.parametrize("name", RULES)
def test_both_backends_take_the_same_steps(name):
    models = []
    for backend in BACKENDS:
        model = network()
        optimizer = make(name, model.parameters())
        with use_backend(backend):
            for batch in batches(STEPS):
                take_step(model, optimizer, batch)
        models.append(model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        np.testing.assert_allclose(one.data, other.data, rtol=0, atol=1e-5)  # as above


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_scalars_and_arrays_of_any_layout_are_updated_in_place(name, backend, rng):
    scalar = Parameter(np.array(2.0))
    turned = Parameter(rng.standard_normal((3, 4)).T)
    plain = Parameter(np.ascontiguousarray(turned.data))
    memory = [scalar.data, turned.data, plain.data]
    optimizer = make(name, [scalar, turned, plain])
    with use_backend(backend):
        for _ in range(3):
            optimizer.zero_grad()
            (scalar * scalar + (turned * turned).sum() + (plain * plain).sum()).backward()
            optimizer.step()
    assert float(scalar.data) < 2
    # The same numbers in another order of memory.
    np.testing.assert_allclose(turned.data, plain.data, rtol=1e-14)
    now = [scalar.data, turned.data, plain.data]
    assert all(array is before for array, before in zip(now, memory, strict=True))


# ---------------------------------------------------------------- what is left alone


@pytest.mark.parametrize("name", RULES)
def test_frozen_parameters_and_those_without_a_gradient_are_left_alone(name):
    frozen, unused, used = (Parameter(np.ones(3, np.float32)) for _ in range(3))
    frozen.grad = np.ones(3, np.float32)
    frozen.requires_grad = False
    optimizer = make(name, [frozen, unused, used])
    for _ in range(3):
        used.grad = np.ones(3, np.float32)
        optimizer.step()
    assert frozen.data.tolist() == unused.data.tolist() == [1, 1, 1]
    assert (used.data < 1).all()
    assert optimizer.slots[0] == optimizer.slots[1] == {}


def test_a_parameter_that_joins_late_starts_from_its_own_first_step():
    late, twin = (Parameter(np.ones(3, np.float32)) for _ in range(2))
    other = Parameter(np.ones(1, np.float32))
    optimizer, fresh = Adam([other, late], lr=0.1), Adam([twin], lr=0.1)
    for _ in range(5):
        other.grad = np.ones(1, np.float32)
        optimizer.step()
    late.grad, twin.grad = (np.full(3, 0.5, np.float32) for _ in range(2))
    optimizer.step()
    fresh.step()
    np.testing.assert_array_equal(late.data, twin.data)


def test_zero_grad_forgets_the_gradients():
    parameter = Parameter(np.ones(2))
    parameter.grad = np.ones(2)
    SGD([parameter]).zero_grad()
    assert parameter.grad is None


@pytest.mark.parametrize("name", RULES)
def test_the_gradient_itself_is_not_changed(name):
    parameter = Parameter(np.ones(3))
    parameter.grad = np.arange(3.0)
    make(name, [parameter]).step()
    assert parameter.grad.tolist() == [0, 1, 2]


def test_steps_are_recorded_as_updates():
    parameter = Parameter(np.ones(3))
    parameter.grad = np.ones(3)
    calls = []
    with recording(calls.append):
        Adam([parameter]).step()
    assert [(call.kind, call.phase) for call in calls] == [("adam_step", "update")]


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("name", RULES)
def test_a_state_goes_on_bit_for_bit(name):
    data = batches(10)
    model = network()
    optimizer = make(name, model.parameters())
    for batch in data[:5]:
        take_step(model, optimizer, batch)
    twin = network(seed=9)
    twin.load_state_dict(model.state_dict())
    twin_optimizer = make(name, twin.parameters())
    twin_optimizer.load_state_dict(optimizer.state_dict())
    for batch in data[5:]:
        take_step(model, optimizer, batch)
        take_step(twin, twin_optimizer, batch)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        np.testing.assert_array_equal(one.data, other.data)
    assert twin_optimizer.steps == optimizer.steps == 10


def test_a_state_holds_the_learning_rate():
    first, second = (SGD([Parameter(np.ones(1))], lr=lr) for lr in (0.5, 0.1))
    second.load_state_dict(first.state_dict())
    assert second.lr == 0.5


def state_of(kind, **settings):
    parameter = Parameter(np.ones((2, 3), np.float32))
    parameter.grad = np.ones((2, 3), np.float32)
    optimizer = kind([parameter], **settings)
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "missing key 'steps' for Adam"),
        ({"steps": np.array(1)}, "missing key 'lr' for Adam"),
        (state_of(SGD, momentum=0.9), "unknown key '0.velocity' for Adam"),
        (state_of(Adam) | {"extra": np.zeros(1)}, "unknown key 'extra' for Adam"),
        (state_of(Adam) | {"1.first": np.zeros(1)}, "unknown key '1.first' for Adam"),
        (state_of(Adam) | {"-1.first": np.zeros(1)}, "unknown key '-1.first' for Adam"),
        (
            state_of(Adam) | {"0.first": np.zeros((3, 2))},
            r"'0.first' has shape \(3, 2\), the parameter needs \(2, 3\)",
        ),
        (state_of(Adam) | {"0.step": np.zeros(2)}, r"'0.step' has shape \(2,\), .* needs \(\)"),
        (
            {k: v for k, v in state_of(Adam).items() if k != "0.second"},
            "missing key '0.second' for Adam",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_an_error_and_nothing_changes(state, message):
    optimizer = Adam([Parameter(np.ones((2, 3)))], lr=0.25)
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state_dict(state)
    assert optimizer.state_dict() == {"steps": 0, "lr": 0.25}


# ---------------------------------------------------------------- bad settings


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_an_optimizer_needs_a_parameter(kind):
    with pytest.raises(SettingError, match="at least one parameter, got none"):
        kind([])


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_rates_are_at_least_zero(kind, name, value):
    with pytest.raises(SettingError, match=f"{name} must be at least 0, got {value}"):
        kind([Parameter(np.ones(1))], **{name: value})


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (SGD, {"momentum": -0.5}, "momentum must be at least 0, got -0.5"),
        (Adam, {"betas": (1.0, 0.9)}, r"betas must be in \[0, 1\), got \(1.0, 0.9\)"),
        (AdamW, {"betas": (0.9, -0.1)}, r"betas must be in \[0, 1\), got \(0.9, -0.1\)"),
        (Adam, {"eps": -1e-8}, "eps must be at least 0, got -1e-08"),
    ],
)
def test_a_bad_setting_is_an_error_that_shows_it(kind, settings, message):
    with pytest.raises(SettingError, match=message):
        kind([Parameter(np.ones(1))], **settings)


def test_the_base_class_does_not_know_how_to_step():
    parameter = Parameter(np.ones(1))
    parameter.grad = np.ones(1)
    with pytest.raises(NotImplementedError):
        Optimizer([parameter], lr=0.1, weight_decay=0.0).step()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Tensor([[1.0]], requires_grad=True), "takes a list of parameters, got one tensor"),
        ([Tensor([1.0], requires_grad=True) * 2], "parameter 0 is a Tensor that was computed"),
        ([("weight", Tensor([1.0]))], "parameter 0 is a tuple .* pass model.parameters"),
        ([WEIGHT := Tensor([1.0], requires_grad=True), WEIGHT], "given twice"),
    ],
)
def test_only_leaves_each_once_can_be_optimized(params, message):
    with pytest.raises(SettingError, match=message):
        SGD(params)


@pytest.mark.parametrize("name", ["steps", "lr"])
def test_a_counter_with_axes_is_an_error_and_changes_nothing(name):
    optimizer = SGD([Tensor([1.0], requires_grad=True)], lr=0.5)
    state = {**optimizer.state_dict(), name: np.array([1, 2])}
    with pytest.raises(CheckpointError, match=f"'{name}' has shape"):
        optimizer.load_state_dict(state)
    assert (optimizer.steps, optimizer.lr) == (0, 0.5)
